/* Records: what the products with quantized weights multiply at once (hotshoe_quants_unpack.h describes them), and the sink
 * into which the packed blocks of a type are read. */
#ifndef HOTSHOE_QUANTS_RECORDS_H
#define HOTSHOE_QUANTS_RECORDS_H

#include "hotshoe_quants_set.h"
#include "hotshoe_quants_vectors.h"

enum { PARTS = ROWS / LANES }; /* vectors of a panel's rows */

/* One token's weights come at the memory's speed. The processor sees by itself where a plain order of reads goes on, but only to
 * the end of a page: with each block a line of the page after that is asked for. To ask for every line takes a third from it where
 * pages are large (benchmarks/NOTES.md).
 * Types of which a block is read in several places at once need just that, and say so: Into which cache, and how many bytes
 * ahead. Into the first level, which has few misses at a time, Q6_K came at 9 GB/s a core and Q3_K at 7, and now at 21 and 16. */
#define PAGE 4096
#if LANES == 16
#define ASK_INTO _MM_HINT_T1
#define ASK_AHEAD 8192
#else
#define ASK_INTO _MM_HINT_T0
#define ASK_AHEAD 4096
#endif

/* The form of codes of up to 6 bits, and of 8. */
#if defined(QUANTS_AVX2)
#define FORM_OF_6 FORM_U8
#define FORM_OF_8 FORM_S16
#else
#define FORM_OF_6 FORM_DOT
#define FORM_OF_8 FORM_DOT
#endif

/* Added now: with 16 registers GCC would gather all products of a block first, and spill them. */
#if LANES == 8
#define ADD_NOW(sum) __asm__("" : "+x"(sum))
#else
#define ADD_NOW(sum) (void) (sum)
#endif

/* Products of the codes of a group for some rows are added to `sum`.
 * FORM_U8, vpmaddubsw: the products of an unsigned and a signed byte, two added to 16 bits without saturation, for 63 * 127 * 2
 * fits. The sums of a block wrap around, which does no harm: what they start with takes `zero` from each code, and the final
 * sum of 16 (block 32) or 8 products of codes within [-16, 15] or [-32, 31] fits in 16 bits.
 * FORM_S16, codes of 8 bits: vpmaddubsw would saturate, and taking them apart or moving signs costs as much as vpmaddwd, which
 * multiplies half as many at once.
 * FORM_DOT, vpdpbusd: four products are added to 32 bits, where the largest sum of 255 * 127 fits. */
INLINE ints add_products(int form, ints sum, ints codes, ints x) {
    if (form == FORM_DOT) {
        sum = DPBUSD(sum, codes, x);
    } else if (form == FORM_U8) {
        sum = V(add_epi16)(sum, V(maddubs_epi16)(codes, x));
    } else {
        sum = V(add_epi32)(sum, V(madd_epi16)(codes, x));
    }
    ADD_NOW(sum);
    return sum;
}

/* A record's integers as floats. */
INLINE floats in_floats(int form, ints sum) {
    return V(cvtepi32_ps)(form == FORM_U8 ? V(madd_epi16)(sum, V(set1_epi16)(1)) : sum);
}

/* Where the codes of packed blocks go: into records, or, where there is one token only, straight into its sums. */
struct sink {
    int direct;            /* into sums */
    int asks;              /* for every line that comes: see ASK_AHEAD */
    int block, form, mins; /* of a record */
    char * out;            /* the records */
    const char * x;        /* the token's records */
    floats total[PARTS];   /* the sums of 16 rows so far */
    floats of_span;        /* those of a span, which the token's scale is still to multiply */
    ints sum[8];           /* those of records that are open, by slot */
    const char * ahead;    /* the line that is asked for next */
};

/* What one token multiplies soon is asked for, each line once and in the order of addresses, whatever order codes are read in.
 * For records the tiles ask, which have the time. */
INLINE void ask(struct sink * s, int lines) {
    if (s->direct && s->asks) {
        UNROLL_FOR(int i = 0; i < lines; ++i, s->ahead += GROUP) {
            _mm_prefetch(s->ahead, ASK_INTO);
        }
    }
}
/* Before a packed block is read: `others` bytes of it are no codes, and asked for at once. */
INLINE void open_block(struct sink * s, const char * in, int others) {
    if (s->direct && !s->asks) {
        _mm_prefetch(in + PAGE, _MM_HINT_T1);
    }
    s->ahead = in + ASK_AHEAD;
    ask(s, others / GROUP);
}
/* Word `word` of some rows: the part `half` of them. A whole word is a line. */
INLINE ints stream(struct sink * s, const char * p, int word, int half) {
    if (word % PARTS == 0) {
        ask(s, 1);
    }
    return words(p + word * GROUP + half * 4 * LANES);
}

INLINE const char * staged_at(const struct sink * s, int record) {
    return s->x + record * STAGED_RECORD(s->block, s->form);
}
INLINE void open_record(struct sink * s, int slot, int record) {
    if (s->direct) {
        const int start = STAGED_RECORD(s->block, s->form) - 8;
        s->sum[slot] = s->form == FORM_S16 ? zeros() : four_bytes(staged_at(s, record) + start);
    }
}
/* Codes of 8 bits with their sign, as FORM_OF_8 has them: for vpdpbusd they are counted from -128. */
INLINE ints of_8_bits(ints codes) {
    if (FORM_OF_8 == FORM_DOT) {
        codes ^= bytes(0x80);
    }
    return codes;
}

/* The codes of a group for some rows; those of FORM_S16 with their sign, in 8 bits. */
INLINE void take(struct sink * s, int slot, int record, int group, int half, ints codes) {
    const int wide = s->form == FORM_S16;
    const ints even = V(srai_epi16)(V(slli_epi16)(codes, 8), 8), odd = V(srai_epi16)(codes, 8); /* if wide */
    if (s->direct) {
        const char * x = staged_at(s, record) + group * (wide ? 8 : 4);
        s->sum[slot] = add_products(s->form, s->sum[slot], wide ? even : codes, four_bytes(x));
        if (wide) {
            s->sum[slot] = add_products(s->form, s->sum[slot], odd, four_bytes(x + 4));
        }
        return;
    }
    char * out =
        s->out + record * RECORD(s->block, s->form, s->mins) + (wide ? 2 : 1) * (group * GROUP + half * 4 * LANES);
    store_words(out, wide ? even : codes);
    if (wide) {
        store_words(out + 32, odd);
    }
}
INLINE void close_record(struct sink * s, int slot, int record, int half, floats scale, floats least) {
    if (s->direct) {
        const char * sum_of_codes = staged_at(s, record) + STAGED_RECORD(s->block, s->form) - 4;
        s->of_span = V(fmadd_ps)(in_floats(s->form, s->sum[slot]), scale, s->of_span);
        if (s->mins) {
            s->total[half] = V(fmadd_ps)(least, as_floats(four_bytes(sum_of_codes)), s->total[half]);
        }
        return;
    }
    char * out = s->out + record * RECORD(s->block, s->form, s->mins) + CODE_BYTES(s->block, s->form);
    V(store_ps)((float *) out + half * LANES, scale);
    if (s->mins) {
        V(store_ps)((float *) (out + NUMBERS) + half * LANES, least);
    }
}
/* After the last record of a span. */
INLINE void close_span(struct sink * s, int record, int half) {
    if (s->direct) {
        const floats token = as_floats(four_bytes(staged_at(s, record) + STAGED_RECORD(s->block, s->form) - 12));
        s->total[half] = V(fmadd_ps)(s->of_span, token, s->total[half]);
        s->of_span = V(setzero_ps)();
    }
}
INLINE void next_records(struct sink * s, int n) {
    if (s->direct) {
        s->x += n * STAGED_RECORD(s->block, s->form);
    } else {
        s->out += n * RECORD(s->block, s->form, s->mins);
    }
}

#endif
