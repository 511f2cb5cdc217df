/* Force-included into ggml's CPU backend (see CMakeLists.txt), to replace the pause of its spinning threads.
 *
 * ggml's threads meet at a barrier after every operation, about a thousand times a token, and wait there by spinning. Where
 * more threads want to run than there are cores (two models at work, or a busy machine) those that wait keep the cores from
 * those that are waited for until the scheduler takes them away: milliseconds each time, seconds a token. So a thread
 * that has spun for some 10 microseconds lets others run. On a 0.5B model (q4_0, 2 cores), tokens/s alone (after 512
 * tokens) and of each of two processes (after none): 76 and none within minutes as ggml is; 74 and 42 with a yield for
 * every 256 pauses, however short the wait; 80 and 47 with a yield after 300 pauses of one wait. Time since the last
 * pause tells one wait from the next.
 */
#if defined(__x86_64__) && defined(__linux__) && !defined(HOTSHOE_RELAX_H)
#define HOTSHOE_RELAX_H

#include <immintrin.h>
#include <sched.h>

#define HOTSHOE_SPINS 300
#define HOTSHOE_WORK 4000 /* cycles between two pauses that mean: there was work */

static inline void hotshoe_relax(void) {
    static __thread unsigned long long last;
    static __thread unsigned spins;
    const unsigned long long now = __builtin_ia32_rdtsc();
    if (now - last > HOTSHOE_WORK) {
        spins = 0;
    }
    last = now;
    if (++spins < HOTSHOE_SPINS) {
        __builtin_ia32_pause();
    } else {
        sched_yield();
        last = __builtin_ia32_rdtsc();
    }
}

#define _mm_pause hotshoe_relax

#endif
