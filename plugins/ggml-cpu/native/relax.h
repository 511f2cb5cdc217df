/* Replaces the pause of the spinning threads in ggml's CPU backend, which is compiled with `-include relax.h` (see
 * CMakeLists.txt).
 *
 * ggml's threads meet at a barrier after every operation, about a thousand times a token, and wait there by spinning.
 * If more threads want to run than there are cores (two models at work, or a busy machine), the waiting threads occupy
 * the cores that the others need until the scheduler takes them away: milliseconds each time, seconds for a token.
 * Therefore a thread that has spun for about 10 microseconds yields. On a 0.5B model (q4_0, 2 cores), in tokens/s, one
 * process alone (after 512 tokens), and each of two processes (after none): 76, and no token within minutes, with
 * ggml's own pause; 74 and 42 with a yield for every 256 pauses, however short the wait; 80 and 47 with a yield after
 * 300 pauses of one wait. The time since the last pause tells one wait from the next.
 */
#if defined(__x86_64__) && defined(__linux__) && !defined(HOTSHOE_RELAX_H)
#define HOTSHOE_RELAX_H

#include <immintrin.h>
#include <sched.h>

#define HOTSHOE_SPINS 300
#define HOTSHOE_WORK 4000 /* a longer time between two pauses, in cycles, means that there was work */

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
