/* Measures the ways of prefetching for each type, and remembers the fastest; see prefetch_choice.h. */
#include "prefetch_choice.h"

#include "hotshoe_quants.h"
#include "isa.h"

#if defined(HOTSHOE_X86) || defined(HOTSHOE_ARM)

#include <stdatomic.h>
#include <time.h>

enum {
    N_WAYS = HOTSHOE_PREFETCH_WAYS,
    N_SAMPLES = 15,       /* of each way */
    MIN_BYTES = 16 << 10, /* of a sample: reading the clock is a small part */
    UNDECIDED = 0,        /* the ways are numbered from 1 on */
};
static const struct prefetch_way ways[N_WAYS] = {{0, 4096}, {1, 1024}, {1, 8192}};

/* The ways are tried again after so many bytes, then after twice as many, up to a limit: some ten seconds of work. */
static const int64_t FIRST_PERIOD = (int64_t) 1 << 30, LAST_PERIOD = (int64_t) 1 << 38;

/* Several threads write it without a lock. All they could lose is a sample. */
struct choice {
    _Atomic int fastest;                     /* a way, or UNDECIDED */
    _Atomic int begun;                       /* samples */
    _Atomic float speeds[N_WAYS][N_SAMPLES]; /* bytes per nanosecond */
    _Atomic float medians[N_WAYS];
    _Atomic int64_t period, left; /* bytes until the ways are tried again */
};
static struct choice choices[GGML_TYPE_COUNT][MOST_AT_ONCE];
static _Atomic int forced;

#define LOAD(place) atomic_load_explicit(&(place), memory_order_relaxed)
#define STORE(place, value) atomic_store_explicit(&(place), value, memory_order_relaxed)

static int64_t nanoseconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (int64_t) t.tv_sec * 1000000000 + t.tv_nsec;
}

static float median(_Atomic float * samples) {
    float sorted[N_SAMPLES];
    for (int i = 0, j; i < N_SAMPLES; ++i) {
        const float sample = LOAD(samples[i]);
        for (j = i; j > 0 && sorted[j - 1] > sample; --j) {
            sorted[j] = sorted[j - 1];
        }
        sorted[j] = sample;
    }
    return sorted[N_SAMPLES / 2];
}

static void decide(struct choice * c) {
    int fastest = 0;
    for (int i = 0; i < N_WAYS; ++i) {
        STORE(c->medians[i], median(c->speeds[i]));
        fastest = LOAD(c->medians[i]) > LOAD(c->medians[fastest]) ? i : fastest;
    }
    const int64_t period = LOAD(c->period) ? 2 * LOAD(c->period) : FIRST_PERIOD;
    STORE(c->period, period < LAST_PERIOD ? period : LAST_PERIOD);
    STORE(c->left, LOAD(c->period));
    STORE(c->fastest, fastest + 1);
}

struct prefetch_use begin_prefetch(int type, int n_tokens, int64_t bytes) {
    struct choice * c = &choices[type][n_tokens - 1];
    int way = LOAD(forced), sample = -1;
    if (way == UNDECIDED) {
        way = LOAD(c->fastest);
        if (way == UNDECIDED && bytes >= MIN_BYTES) {
            sample = atomic_fetch_add_explicit(&c->begun, 1, memory_order_relaxed);
            if (sample == N_WAYS * N_SAMPLES) {
                decide(c);
            }
            sample = sample < N_WAYS * N_SAMPLES ? sample : -1;
            way = sample >= 0 ? sample % N_WAYS + 1 : LOAD(c->fastest);
        } else if (way != UNDECIDED) {
            const int64_t left = atomic_fetch_sub_explicit(&c->left, bytes, memory_order_relaxed);
            if (left > 0 && left <= bytes) { /* one thread sees this */
                STORE(c->begun, 0);
                STORE(c->fastest, UNDECIDED);
            }
        }
    }
    const struct prefetch_use use = {ways[way == UNDECIDED ? 0 : way - 1], bytes, sample,
                                     sample < 0 ? 0 : nanoseconds()};
    return use;
}

void end_prefetch(int type, int n_tokens, const struct prefetch_use * use) {
    if (use->sample >= 0) {
        const int64_t time = nanoseconds() - use->start;
        const float speed =
            time > 0 ? (float) use->bytes / (float) time : 0; /* 0: the clock was set; the median ignores it */
        STORE(choices[type][n_tokens - 1].speeds[use->sample % N_WAYS][use->sample / N_WAYS], speed);
    }
}

int hotshoe_quants_prefetch(int type, float * speeds) {
    for (int i = 0; i < N_WAYS; ++i) {
        speeds[i] = LOAD(choices[type][0].medians[i]);
    }
    return LOAD(forced) == UNDECIDED ? LOAD(choices[type][0].fastest) : LOAD(forced);
}

void hotshoe_quants_force_prefetch(int way) { STORE(forced, way); }

#else /* no products that prefetch */

int hotshoe_quants_prefetch(int type, float * speeds) {
    (void) type;
    for (int i = 0; i < HOTSHOE_PREFETCH_WAYS; ++i) {
        speeds[i] = 0;
    }
    return 0;
}

void hotshoe_quants_force_prefetch(int way) { (void) way; }

#endif
