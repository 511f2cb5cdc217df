/* Reads the packed blocks of each type: into records for the tiles of hotshoe_quants_tiles.h, or straight into the sums
 * of a few tokens.
 *
 * A packed block has the numbers of 16 rows' blocks: the same number of all rows, then the next one. So one vector
 * reads the same number of 4 to 16 rows: `vec` below is the number of such a vector of the panel. hotshoe_quants_pack.c
 * has the order of the numbers: scales first, then codes in the order in which they are read here.
 *
 * A record is what a tile multiplies at once: 16 rows by `record_elements` elements, 32, or 16 if so few share a scale.
 *   codes    [elements / 4][16 rows][4]: quads, unsigned, with the code `zero` for 0
 *   scales   [16 rows], F32
 *   offsets  [16 rows], F32, if the type has minimums
 * Without VNNI, codes that need 8 bits are signed numbers of 16 bits (FORM_S16), [elements / 4][2][2][8][2]: elements 0
 * and 2 of the quad for 8 rows, elements 1 and 3 of the same rows; then the other 8 rows. */
#ifndef HOTSHOE_QUANTS_UNPACK_H
#define HOTSHOE_QUANTS_UNPACK_H

#include "codebooks.h"
#include "hotshoe_quants_records.h"

/* --- blocks of 32 ------------------------------------------------------------------------------------ */

/* Bit `quad` of each byte, moved to bit 4. */
INLINE ints fifth_bits(ints bits, int quad) {
    return low(quad < 4 ? V(slli_epi16)(bits, 4 - quad) : V(srli_epi16)(bits, quad - 4), 16);
}

/* Q4_0, Q4_1, Q5_0 and Q5_1: a scale in half precision, perhaps a minimum, and codes of 4 bits: element i below element
 * i + 16. fifth: the type has fifth bits, one word for each row (see order_fifth_bits). */
INLINE void nibbles(struct sink * s, const char * in, int64_t n, int fifth) {
    const int at_bits = ROWS * (2 + 2 * s->mins), at_codes = at_bits + (fifth ? QUAD : 0);
    for (int64_t i = 0; i < n; ++i, in += at_codes + 4 * QUAD) {
        open_block(s, in, 0);
        UNROLL_FOR(int vec = 0; vec < PANEL_VECTORS; ++vec) {
            const ints bits = fifth ? load_words(in + at_bits + vec * 4 * LANES) : zeros();
            open_record(s, 0, 0);
            UNROLL_FOR(int w = 0; w < 4; ++w) {
                const ints both = stream(s, in + at_codes, w, vec);
                ints first = low(both, 15), second = high(both, 4, 15);
                if (fifth) {
                    first = first | fifth_bits(bits, w);
                    second = second | fifth_bits(bits, 4 + w);
                }
                take(s, 0, 0, w, vec, first);
                take(s, 0, 0, 4 + w, vec, second);
            }
            const floats scale = f16_floats(in + vec * 2 * LANES), zero = V(set1_ps)(fifth ? 16 : 8);
            /* The minimum is the weight of code 0. */
            const floats minimum = s->mins ? f16_floats(in + ROWS * 2 + vec * 2 * LANES) : V(setzero_ps)();
            close_record(s, 0, 0, vec, scale, V(fmadd_ps)(scale, zero, minimum));
            close_span(s, 0, vec);
        }
        prefetch_lines(s, 1); /* scales */
        next_records(s, 1);
    }
}

/* Codes may be indices of a table of 16 numbers: IQ4_NL, IQ4_XS, MXFP4. */
INLINE void take_looked_up(struct sink * s, int record, const char * in, int vec, ints table) {
    UNROLL_FOR(int w = 0; w < 4; ++w) {
        const ints both = stream(s, in, w, vec);
        take(s, 0, record, w, vec, V(shuffle_epi8)(table, low(both, 15)));
        take(s, 0, record, 4 + w, vec, V(shuffle_epi8)(table, high(both, 4, 15)));
    }
}

INLINE void iq4_nl(struct sink * s, const char * in, int64_t n) {
    for (int64_t i = 0; i < n; ++i, in += ROWS * 2 + 4 * QUAD) {
        open_block(s, in, 0);
        UNROLL_FOR(int vec = 0; vec < PANEL_VECTORS; ++vec) {
            open_record(s, 0, 0);
            take_looked_up(s, 0, in + ROWS * 2, vec, of_8_bits(table_of(iq4_codebook)));
            close_record(s, 0, 0, vec, f16_floats(in + vec * 2 * LANES), V(setzero_ps)());
            close_span(s, 0, vec);
        }
        prefetch_lines(s, 1); /* scales */
        next_records(s, 1);
    }
}

/* The scale of MXFP4 is a power of two, with its exponent in one byte. The codebook has twice the numbers, so the scale
 * here is half of it. */
INLINE void mxfp4(struct sink * s, const char * in, int64_t n) {
    for (int64_t i = 0; i < n; ++i, in += ROWS + 4 * QUAD) {
        open_block(s, in, 0);
        UNROLL_FOR(int vec = 0; vec < PANEL_VECTORS; ++vec) {
            const ints e = bytes_widened(in + vec * LANES);
            const ints normal = V(slli_epi32)(V(sub_epi32)(e, V(set1_epi32)(1)), 23); /* at most 0 if e < 2: */
            const ints shift = V(min_epi32)(e, V(set1_epi32)(2));
            const ints tiny = V(sllv_epi32)(V(set1_epi32)(0x00200000), shift); /* 2^-128, 2^-127 */
            const ints scale = V(max_epi32)(normal, tiny);
            open_record(s, 0, 0);
            take_looked_up(s, 0, in + ROWS, vec, table_of(fp4_codebook));
            close_record(s, 0, 0, vec, as_floats(scale), V(setzero_ps)());
            close_span(s, 0, vec);
        }
        prefetch_lines(s, 1); /* scales */
        next_records(s, 1);
    }
}

INLINE void q8_0(struct sink * s, const char * in, int64_t n) {
    for (int64_t i = 0; i < n; ++i, in += ROWS * 2 + 8 * QUAD) {
        open_block(s, in, 0);
        UNROLL_FOR(int vec = 0; vec < PANEL_VECTORS; ++vec) {
            open_record(s, 0, 0);
            UNROLL_FOR(int q = 0; q < 8; ++q) {
                take(s, 0, 0, q, vec, of_8_bits(stream(s, in + ROWS * 2, q, vec)));
            }
            close_record(s, 0, 0, vec, f16_floats(in + vec * 2 * LANES), V(setzero_ps)());
            close_span(s, 0, vec);
        }
        prefetch_lines(s, 1); /* scales */
        next_records(s, 1);
    }
}

/* --- superblocks of 256 --------------------------------------------------------------------------- */

/* Q4_K and Q5_K: eight records, with scales and minimums of 6 bits in 12 bytes. The first four of each are the low bits
 * of bytes 0 to 7. Of the others, 4 bits are in bytes 8 to 11, and the upper two above those of the first four. The
 * codes of record 2j are the lower nibbles of words 8j to 8j + 7, those of record 2j + 1 the upper ones. Fifth bits are
 * in 8 words, those of record j at bit j of each byte. */
INLINE void k45(struct sink * s, const char * in, int64_t n, int fifth) {
    enum { SCALES = 4 * ROWS, FIFTHS = SCALES + 3 * QUAD };
    const int at_codes = FIFTHS + (fifth ? 8 * QUAD : 0);
    const floats zero = V(set1_ps)(fifth ? 16 : 8);
    for (int64_t i = 0; i < n; ++i, in += at_codes + 32 * QUAD) {
        open_block(s, in, at_codes);
        for (int vec = 0; vec < PANEL_VECTORS; ++vec) {
            const floats d = f16_floats(in + vec * 2 * LANES), d_min = f16_floats(in + 2 * ROWS + vec * 2 * LANES);
            const char * packed = in + SCALES + vec * 4 * LANES;
            const ints a = load_words(packed), b = load_words(packed + QUAD), c = load_words(packed + 2 * QUAD);
            const ints scales[2] = {low(a, 63), low(c, 15) | low(V(srli_epi16)(a, 2), 48)};
            const ints mins[2] = {low(b, 63), high(c, 4, 15) | low(V(srli_epi16)(b, 2), 48)};
            /* Not unrolled: the compiler would compute all scales first, and spill them. */
            for (int j = 0; j < 4; ++j) {
                open_record(s, 0, 2 * j);
                open_record(s, 1, 2 * j + 1);
                UNROLL_FOR(int q = 0; q < 8; ++q) {
                    const ints both = stream(s, in + at_codes, 8 * j + q, vec);
                    ints first = low(both, 15), second = high(both, 4, 15);
                    if (fifth) {
                        const ints fifth_pairs = right_16(load_words(in + FIFTHS + q * QUAD + vec * 4 * LANES), 2 * j);
                        first = first | low(V(slli_epi16)(fifth_pairs, 4), 16);
                        second = second | low(V(slli_epi16)(fifth_pairs, 3), 16);
                    }
                    take(s, 0, 2 * j, q, vec, first);
                    take(s, 1, 2 * j + 1, q, vec, second);
                }
                const int shift = 16 * (j % 2);
                const ints pair = right_32(scales[j / 2], shift), min_pair = right_32(mins[j / 2], shift);
                UNROLL_FOR(int i = 0; i < 2; ++i) {
                    const floats scale = V(mul_ps)(d, byte_of(pair, i));
                    const floats minimum = V(mul_ps)(d_min, byte_of(min_pair, i));
                    close_record(s, i, 2 * j + i, vec, scale, V(fmsub_ps)(scale, zero, minimum));
                }
                if (j % 2) {
                    close_span(s, 2 * j, vec);
                }
            }
        }
        next_records(s, 8);
    }
}

/* The types with a scale for every 16 elements have 128 elements in each half of a superblock. Sub-block j of 32
 * elements is two records; its bits are in the words of its 8 quads, at a position that depends on j. All 8 records of
 * a half are closed in order, as tiles do it, so that the sums are the same. */

/* Q6_K: three words for each of 8 quads of a half: the lower bits of sub-blocks 0 and 2, those of 1 and 3, and the
 * upper two bits of all, those of sub-block j at bits 2j. */
INLINE void q6_k(struct sink * s, const char * in, int64_t n) {
    enum { SCALES = 2 * ROWS, CODES = SCALES + 4 * QUAD, BYTES = CODES + 48 * QUAD };
    for (int64_t i = 0; i < n; ++i, in += BYTES) {
        open_block(s, in, CODES);
        for (int vec = 0; vec < PANEL_VECTORS; ++vec) {
            const floats d = f16_floats(in + vec * 2 * LANES);
            for (int half = 0; half < 2; ++half) {
                const char * const at_codes = in + CODES + 24 * half * QUAD;
                UNROLL_FOR(int part = 0; part < 2; ++part) {
                    UNROLL_FOR(int j = 0; j < 4; ++j) {
                        open_record(s, 2 * j + part, 8 * half + 2 * j + part);
                    }
                    UNROLL_FOR(int q = 0; q < 4; ++q) {
                        const int word = 3 * (4 * part + q);
                        const ints a = stream(s, at_codes, word, vec), b = stream(s, at_codes, word + 1, vec);
                        const ints top = stream(s, at_codes, word + 2, vec);
                        const ints codes[4] = {
                            low(a, 15) | low(V(slli_epi16)(top, 4), 48),
                            low(b, 15) | low(V(slli_epi16)(top, 2), 48),
                            high(a, 4, 15) | low(top, 48),
                            high(b, 4, 15) | high(top, 2, 48),
                        };
                        UNROLL_FOR(int j = 0; j < 4; ++j) {
                            take(s, 2 * j + part, 8 * half + 2 * j + part, q, vec, codes[j]);
                        }
                    }
                }
                const char * at_scales = in + SCALES + 2 * half * QUAD + vec * 4 * LANES;
                const ints scales[2] = {load_words(at_scales), load_words(at_scales + QUAD)};
                UNROLL_FOR(int r = 0; r < 8; ++r) {
                    const floats scale = V(mul_ps)(d, signed_byte_of(scales[r / 4], r % 4));
                    close_record(s, r, 8 * half + r, vec, scale, V(setzero_ps)());
                }
                close_span(s, 8 * half, vec);
            }
        }
        next_records(s, 16);
    }
}

/* Codes of 2 bits of 4 sub-blocks, and perhaps third bits. Each half has 8 words, with sub-block j at bits 2j. Both
 * halves have their third bits in the same 8 words: those of sub-block j at bit 4 * half + j of each byte. A word
 * of third bits is stored just before the word of the first half that is read with it.
 *
 * Codes are unsigned bytes for VNNI, so they need not be moved to bit 0: those of sub-block j stay at bit 2j, and their
 * scale is divided by the power of two. Neither the larger sum nor the smaller scale is rounded, so the results are the
 * same. Codes with a third bit would not fit at bit 6: those of sub-block 3 go to bit 5. */
INLINE int bit_of_codes(const struct sink * s, int j, int has_third) {
    return !s->multiplies || !UNSIGNED_BYTES ? 0 : has_third && j == 3 ? 5 : 2 * j;
}
INLINE void open_sub_blocks(struct sink * s, int half, int part, int has_third) {
    UNROLL_FOR(int j = 0; j < 4; ++j) {
        open_record(s, 2 * j + part, 8 * half + 2 * j + part);
        EACH_TOKEN { s->sum[t][2 * j + part] = left_32(s->sum[t][2 * j + part], bit_of_codes(s, j, has_third)); }
    }
}
INLINE void take_two_bits(struct sink * s, const char * in, int has_third, int half, int part, int vec) {
    UNROLL_FOR(int q = 0; q < 4; ++q) {
        const int word = 4 * part + q;
        ints bits = zeros();
        if (has_third) {
            bits = half ? load_words(in + 2 * word * QUAD + vec * 4 * LANES) : stream(s, in, 2 * word, vec);
        }
        const ints pairs = stream(s, in, has_third && !half ? 2 * word + 1 : 8 * (half + has_third) + word, vec);
        UNROLL_FOR(int j = 0; j < 4; ++j) {
            const int bit = bit_of_codes(s, j, has_third);
            ints codes = low(moved_16(pairs, 2 * j, bit), 3 << bit);
            if (has_third) {
                codes = codes | low(moved_16(bits, 4 * half + j, bit + 2), 4 << bit);
            }
            take(s, 2 * j + part, 8 * half + 2 * j + part, q, vec, codes);
        }
    }
}
/* d, divided by the power of two of each sub-block's codes. */
INLINE void scale_sub_blocks(const struct sink * s, floats d, int has_third, floats scaled[4]) {
    UNROLL_FOR(int j = 0; j < 4; ++j) {
        scaled[j] = V(mul_ps)(d, V(set1_ps)(1.0f / (float) (1 << bit_of_codes(s, j, has_third))));
    }
}

INLINE void q2_k(struct sink * s, const char * in, int64_t n) {
    enum { SCALES = 4 * ROWS, CODES = SCALES + 4 * QUAD, BYTES = CODES + 16 * QUAD };
    for (int64_t i = 0; i < n; ++i, in += BYTES) {
        open_block(s, in, CODES);
        for (int vec = 0; vec < PANEL_VECTORS; ++vec) {
            const floats d = f16_floats(in + vec * 2 * LANES), d_min = f16_floats(in + 2 * ROWS + vec * 2 * LANES);
            floats scaled[4];
            scale_sub_blocks(s, d, 0, scaled);
            for (int half = 0; half < 2; ++half) {
                UNROLL_FOR(int part = 0; part < 2; ++part) {
                    open_sub_blocks(s, half, part, 0);
                    take_two_bits(s, in + CODES, 0, half, part, vec);
                }
                const char * at_both = in + SCALES + 2 * half * QUAD + vec * 4 * LANES;
                /* 4 bits of scale below 4 bits of minimum */
                const ints both[2] = {load_words(at_both), load_words(at_both + QUAD)};
                UNROLL_FOR(int r = 0; r < 8; ++r) {
                    const floats scale = V(mul_ps)(scaled[r / 2], byte_of(low(both[r / 4], 15), r % 4));
                    const floats minimum = V(mul_ps)(d_min, byte_of(high(both[r / 4], 4, 15), r % 4));
                    close_record(s, r, 8 * half + r, vec, scale, V(sub_ps)(V(setzero_ps)(), minimum));
                }
                close_span(s, 8 * half, vec);
            }
        }
        next_records(s, 16);
    }
}

INLINE void q3_k(struct sink * s, const char * in, int64_t n) {
    enum { SCALES = 2 * ROWS, CODES = SCALES + 3 * QUAD, BYTES = CODES + 24 * QUAD };
    for (int64_t i = 0; i < n; ++i, in += BYTES) {
        open_block(s, in, CODES);
        for (int vec = 0; vec < PANEL_VECTORS; ++vec) {
            const floats d = f16_floats(in + vec * 2 * LANES);
            const char * packed = in + SCALES + vec * 4 * LANES;
            const ints a = load_words(packed), b = load_words(packed + QUAD), c = load_words(packed + 2 * QUAD);
            floats scaled[4];
            scale_sub_blocks(s, d, 1, scaled);
            UNROLL_FOR(int half = 0; half < 2; ++half) {
                const ints scales[2] = {
                    /* 4 bits in a and b, two more in c; they count from -32 */
                    (half ? high(a, 4, 15) : low(a, 15)) | (half ? low(c, 48) : low(V(slli_epi16)(c, 4), 48)),
                    (half ? high(b, 4, 15) : low(b, 15)) | (half ? high(c, 2, 48) : low(V(slli_epi16)(c, 2), 48)),
                };
                UNROLL_FOR(int part = 0; part < 2; ++part) {
                    open_sub_blocks(s, half, part, 1);
                    take_two_bits(s, in + CODES, 1, half, part, vec);
                }
                UNROLL_FOR(int r = 0; r < 8; ++r) {
                    const floats scale = V(sub_ps)(byte_of(scales[r / 4], r % 4), V(set1_ps)(32));
                    close_record(s, r, 8 * half + r, vec, V(mul_ps)(scaled[r / 2], scale), V(setzero_ps)());
                }
                close_span(s, 8 * half, vec);
            }
        }
        next_records(s, 16);
    }
}

/* IQ4_XS: eight records. A scale has 6 bits and counts from -32: two bits are in 16 bits, four in a byte with those
 * of another scale. */
INLINE void iq4_xs(struct sink * s, const char * in, int64_t n) {
    enum { LOWER = 4 * ROWS, CODES = LOWER + QUAD };
    for (int64_t i = 0; i < n; ++i, in += CODES + 32 * QUAD) {
        open_block(s, in, CODES);
        for (int vec = 0; vec < PANEL_VECTORS; ++vec) {
            const floats d = f16_floats(in + vec * 2 * LANES);
            const ints upper = shorts_widened(in + 2 * ROWS + vec * 2 * LANES);
            const ints lower = load_words(in + LOWER + vec * 4 * LANES);
            for (int r = 0; r < 8; ++r) {
                open_record(s, 0, r);
                take_looked_up(s, r, in + CODES + r * 4 * QUAD, vec, of_8_bits(table_of(iq4_codebook)));
                const ints lower_bits = right_32(lower, 4 * r) & V(set1_epi32)(15);
                const ints upper_bits = right_32(upper, 2 * r) & V(set1_epi32)(3);
                const ints scale_bits = lower_bits | V(slli_epi32)(upper_bits, 4);
                const floats scale = V(cvtepi32_ps)(V(sub_epi32)(scale_bits, V(set1_epi32)(32)));
                close_record(s, 0, r, vec, V(mul_ps)(d, scale), V(setzero_ps)());
                if (r % 4 == 3) {
                    close_span(s, r, vec);
                }
            }
        }
        next_records(s, 8);
    }
}

/* --- functions for each type: into records, and into the sums of a few tokens in both ways of prefetching -- */

#define MULTIPLY(name, tokens, every_line_, elements_, form_, mins_, body)                           \
    ISA static void name(const char * in, int64_t n, const char * x, int64_t ahead_, float * sums) { \
        struct sink summing = {.multiplies = tokens,                                                 \
                               .every_line = every_line_,                                            \
                               .ahead = ahead_,                                                      \
                               .record_elements = elements_,                                         \
                               .form = form_,                                                        \
                               .mins = mins_,                                                        \
                               .x = x};                                                              \
        struct sink * s = &summing;                                                                  \
        EACH_TOKEN {                                                                                 \
            UNROLL_FOR(int vec = 0; vec < PANEL_VECTORS; ++vec) {                                    \
                s->total[t][vec] = V(loadu_ps)(sums + t * ROWS + vec * LANES);                       \
            }                                                                                        \
        }                                                                                            \
        body;                                                                                        \
        EACH_TOKEN {                                                                                 \
            UNROLL_FOR(int vec = 0; vec < PANEL_VECTORS; ++vec) {                                    \
                V(storeu_ps)(sums + t * ROWS + vec * LANES, s->total[t][vec]);                       \
            }                                                                                        \
        }                                                                                            \
    }
#define BOTH_WAYS(name, tokens, ...)                  \
    MULTIPLY(name##_##tokens, tokens, 0, __VA_ARGS__) \
    MULTIPLY(name##_##tokens##_every_line, tokens, 1, __VA_ARGS__)
#define WAYS(name, tokens) {name##_##tokens, name##_##tokens##_every_line}
#if LANES == 16
#define BY_TOKENS(name, ...)        \
    BOTH_WAYS(name, 1, __VA_ARGS__) \
    BOTH_WAYS(name, 2, __VA_ARGS__) \
    BOTH_WAYS(name, 3, __VA_ARGS__) \
    BOTH_WAYS(name, 4, __VA_ARGS__) \
    static const multiply_fn name[MAX_AT_ONCE][2] = {WAYS(name, 1), WAYS(name, 2), WAYS(name, 3), WAYS(name, 4)};
#else
#define BY_TOKENS(name, ...)        \
    BOTH_WAYS(name, 1, __VA_ARGS__) \
    static const multiply_fn name[MAX_AT_ONCE][2] = {WAYS(name, 1)};
#endif
#define TYPE(name, elements_, form_, mins_, body)                                                                      \
    ISA static void unpack_##name(const char * in, int64_t n, char * out) {                                            \
        struct sink storing = {.record_elements = elements_, .form = form_, .mins = mins_, .out = out}, *s = &storing; \
        body;                                                                                                          \
    }                                                                                                                  \
    BY_TOKENS(multiply_##name, elements_, form_, mins_, body)
TYPE(q4_0, 32, FORM_OF_6, 0, nibbles(s, in, n, 0))
TYPE(q4_1, 32, FORM_OF_6, 1, nibbles(s, in, n, 0))
TYPE(q5_0, 32, FORM_OF_6, 0, nibbles(s, in, n, 1))
TYPE(q5_1, 32, FORM_OF_6, 1, nibbles(s, in, n, 1))
TYPE(q8_0, 32, FORM_OF_8, 0, q8_0(s, in, n))
TYPE(iq4_nl, 32, FORM_OF_8, 0, iq4_nl(s, in, n))
TYPE(mxfp4, 32, FORM_OF_6, 0, mxfp4(s, in, n))
TYPE(q2_k, 16, FORM_OF_6, 1, q2_k(s, in, n))
TYPE(q3_k, 16, FORM_OF_6, 0, q3_k(s, in, n))
TYPE(q4_k, 32, FORM_OF_6, 1, k45(s, in, n, 0))
TYPE(q5_k, 32, FORM_OF_6, 1, k45(s, in, n, 1))
TYPE(q6_k, 16, FORM_OF_6, 0, q6_k(s, in, n))
TYPE(iq4_xs, 32, FORM_OF_8, 0, iq4_xs(s, in, n))

#endif
