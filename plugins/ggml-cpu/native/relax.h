/* Force-included into ggml's CPU backend (see CMakeLists.txt), to replace the pause of its spinning threads.
 *
 * ggml's threads meet at a barrier after every operation, about a thousand times a token, and wait there by spinning. Where
 * more threads want to run than there are cores (two models at work, or a busy machine) those that wait keep the cores from
 * those that are waited for until the scheduler takes them away: milliseconds each time, seconds a token. So a thread
 * that has spun for some microseconds lets others run. With cores to spare nobody waits that long but for a sleeping
 * thread, and the call costs less than a microsecond.
 */
#if defined(__x86_64__) && defined(__linux__) && !defined(HOTSHOE_RELAX_H)
#define HOTSHOE_RELAX_H

#include <immintrin.h>
#include <sched.h>

static inline void hotshoe_relax(void) {
    static __thread unsigned spins;
    __builtin_ia32_pause();
    if (++spins % 256 == 0) {
        sched_yield();
    }
}

#define _mm_pause hotshoe_relax

#endif
