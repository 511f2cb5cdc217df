/* Linear attention for one instruction set. hotshoe_recurrent.c includes it once for each set, with these macros
 * defined:
 *   VL      floats of a vector
 *   ROWS    rows of a state that are computed at once
 *   TARGET  the function attribute that allows the instructions
 *   SUFFIX  of the set: NAME(x) is x with this suffix
 *   SUM(v)  the sum of a vector's lanes
 * Vectors are the compiler's own (vector_size), so each operation below is one instruction of the set. */

#include "vectors.h"

/* Goes through the tokens with `rows` rows of a state from `row` on. With AVX-512 they stay in registers meanwhile: a
 * row is 4, 8 or 16 vectors. `rows`, `length`, `each` and `corrects` are constants after inlining. */
FN void NAME(some_rows)(const struct head * h, const struct tokens * tokens, int64_t row, const int rows,
                        const int length, const int each, const int corrects) {
    vf s[ROWS][MAX_KEY / VL];
    float * const state = h->state + row * length;
    const float * const old = tokens->first == 0 ? h->old + row * h->old_step : state;
    const int64_t old_step = tokens->first == 0 ? h->old_step : length;
    UNROLL_FOR(int r = 0; r < rows; ++r) {
        UNROLL_FOR(int c = 0; c < length / VL; ++c) {
            s[r][c] = NAME(load)(old + r * old_step + c * VL);
        }
    }
    for (int64_t i = 0; i < tokens->n; ++i) {
        const int64_t token = tokens->first + i;
        const float * const k = h->k + token * h->key_step;
        const float * const q = h->q + token * h->query_step;
        const float * const v = h->v + token * h->value_step + row;
        const float * const decay = tokens->decay + (each ? i * length : i);
        float * const y = h->y + token * h->y_step + row;
        float new[ROWS]; /* what is added, as a multiple of the key */
        UNROLL_FOR(int r = 0; r < rows; ++r) {
            vf sums[2] = {{0}, {0}};
            UNROLL_FOR(int c = 0; c < length / VL; ++c) {
                if (each) {
                    s[r][c] *= NAME(load)(decay + c * VL);
                }
                if (corrects) {
                    sums[c % 2] += s[r][c] * NAME(load)(k + c * VL);
                }
            }
            const float known = corrects ? SUM(sums[0] + sums[1]) : 0;
            new[r] = tokens->beta[i] * (v[r] - (each ? known : decay[0] * known));
        }
        UNROLL_FOR(int r = 0; r < rows; ++r) {
            vf sums[2] = {{0}, {0}};
            UNROLL_FOR(int c = 0; c < length / VL; ++c) {
                const vf kept = each ? s[r][c] : s[r][c] * decay[0];
                s[r][c] = kept + NAME(load)(k + c * VL) * new[r];
                sums[c % 2] += s[r][c] * NAME(load)(q + c * VL);
            }
            y[r] = h->scale * SUM(sums[0] + sums[1]);
        }
    }
    UNROLL_FOR(int r = 0; r < rows; ++r) {
        UNROLL_FOR(int c = 0; c < length / VL; ++c) {
            NAME(store)(state + r * length + c * VL, s[r][c]);
        }
    }
}

FN void NAME(all_rows)(const struct head * h, const struct tokens * tokens, int64_t first, int64_t last,
                       const int length, const int each, const int corrects) {
    const int rows = length == MAX_KEY ? 1 : ROWS; /* more do not fit into registers */
    int64_t row = first;
    for (; row + rows <= last; row += rows) {
        NAME(some_rows)(h, tokens, row, rows, length, each, corrects);
    }
    for (; row < last; ++row) {
        NAME(some_rows)(h, tokens, row, 1, length, each, corrects);
    }
}

FN void NAME(of_length)(const struct head * h, const struct tokens * tokens, int64_t first, int64_t last,
                        const int length) {
    if (!h->corrects) {
        NAME(all_rows)(h, tokens, first, last, length, 0, 0);
    } else if (h->each) {
        NAME(all_rows)(h, tokens, first, last, length, 1, 1);
    } else {
        NAME(all_rows)(h, tokens, first, last, length, 0, 1);
    }
}

TARGET static void NAME(advance)(const struct head * h, const struct tokens * tokens, int64_t first, int64_t last) {
    if (h->length == MAX_KEY) {
        NAME(of_length)(h, tokens, first, last, MAX_KEY);
    } else if (h->length == MAX_KEY / 2) {
        NAME(of_length)(h, tokens, first, last, MAX_KEY / 2);
    } else {
        NAME(of_length)(h, tokens, first, last, MAX_KEY / 4);
    }
}

#undef vf
#undef vi
#undef FN
#undef VL
#undef ROWS
#undef TARGET
#undef SUFFIX
#undef SUM
