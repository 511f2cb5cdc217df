/* Records, which the products with quantized weights multiply one at a time (hotshoe_quants_unpack.h describes their
 * layout), and the sink that takes the codes of packed blocks. */
#ifndef HOTSHOE_QUANTS_RECORDS_H
#define HOTSHOE_QUANTS_RECORDS_H

#include "hotshoe_quants_set.h"
#include "hotshoe_quants_vectors.h"
#include "prefetch_choice.h"

enum { PANEL_VECTORS = ROWS / LANES }; /* for one number of each row of a panel */

/* How the tiles prefetch the records that are multiplied next. Into L1 they came more slowly with AVX-512. */
#if LANES == 16
#define PREFETCH_RECORDS PREFETCH_L2
#else
#define PREFETCH_RECORDS PREFETCH_L1
#endif

/* The form of codes of up to 6 bits, and that of codes of 8 bits. */
#if defined(QUANTS_AVX2)
#define FORM_OF_6 FORM_U8
#define FORM_OF_8 FORM_S16
#else
#define FORM_OF_6 FORM_DOT
#define FORM_OF_8 FORM_DOT
#endif

/* Makes GCC add each product at once. It would collect operands or products of a whole record first and spill them. */
#if LANES == 8
#define ADD_NOW(sum) __asm__("" : "+x"(sum))
#elif LANES == 4
#define ADD_NOW(sum) __asm__("" : "+w"(sum))
#else
#define ADD_NOW(sum) (void) (sum)
#endif

/* Adds the products of a quad's codes, for the rows of one vector, to `sum`.
 *
 * FORM_U8, vpmaddubsw: it multiplies an unsigned by a signed byte and adds two products to 16 bits; 63 * 127 * 2 does
 * not saturate. The sums of a record wrap around, which does no harm: their start subtracts `zero` from each code, and
 * the final sum of 16 products (records of 32) of codes within [-16, 15], or of 8 products within [-32, 31], fits in 16
 * bits.
 *
 * FORM_S16, codes of 8 bits: vpmaddubsw would saturate. Splitting the codes or moving their signs costs as much as
 * vpmaddwd, which multiplies half as many at once.
 *
 * FORM_DOT, vpdpbusd or ARM's sdot: it adds four products to 32 bits, where the largest sum of 255 * 127 fits. */
INLINE ints add_products(int form, ints sum, ints codes, ints x) {
    if (form == FORM_DOT) {
        sum = DPBUSD(sum, codes, x);
    }
#if defined(QUANTS_AVX2)
    if (form == FORM_U8) {
        sum = V(add_epi16)(sum, V(maddubs_epi16)(codes, x));
    } else if (form == FORM_S16) {
        sum = V(add_epi32)(sum, V(madd_epi16)(codes, x));
    }
#endif
    ADD_NOW(sum);
    return sum;
}

/* The integer sums of a record as floats. */
INLINE floats in_floats(int form, ints sum) {
#if defined(QUANTS_AVX2)
    sum = form == FORM_U8 ? V(madd_epi16)(sum, V(set1_epi16)(1)) : sum;
#endif
    (void) form;
    return V(cvtepi32_ps)(sum);
}

/* The most tokens that are multiplied at once by packed blocks: as many as registers hold the sums of. Types whose
 * records have 16 elements store some sums meanwhile, and are still faster than with codes that are unpacked first. */
#if LANES == 16
#define MAX_AT_ONCE MOST_AT_ONCE
#else
#define MAX_AT_ONCE 1
#endif

/* Takes the codes of packed blocks, and stores them as records or multiplies them by a few tokens. */
struct sink {
    int multiplies;                  /* by so many tokens; 0: codes are stored */
    int every_line;                  /* prefetches every line, not one of each block: see prefetch_choice.h */
    int64_t ahead;                   /* prefetches what is so many bytes ahead */
    int record_elements, form, mins; /* of a record: see struct quant */
    char * out;                      /* the records */
    const char * x;                  /* the tokens' records: a tile of them */
    const char * next;               /* the line that is prefetched next */
    /* of each token */
    floats total[MAX_AT_ONCE][PANEL_VECTORS]; /* the sums of 16 rows */
    floats span_sum[MAX_AT_ONCE];             /* the sums of the current span, before the token's scale */
    ints sum[MAX_AT_ONCE][8];                 /* the sums of the open records, by slot */
};
#define EACH_TOKEN UNROLL_FOR(int t = 0; t < s->multiplies; ++t)

/* Prefetches what the tokens are multiplied by soon: each line once, in the order of addresses, whatever the order in
 * which codes are read. Into L2: L1 can wait for few lines at a time. If codes are stored, the tiles prefetch instead:
 * they have time for it. */
INLINE void prefetch_lines(struct sink * s, int lines) {
    if (s->multiplies && s->every_line) {
        UNROLL_FOR(int i = 0; i < lines; ++i, s->next += CACHE_LINE) {
            PREFETCH_L2(s->next);
        }
    }
}
/* Call this before reading a packed block. others: bytes before its codes, prefetched at once. */
INLINE void open_block(struct sink * s, const char * in, int others) {
    if (s->multiplies && !s->every_line) {
        PREFETCH_L2(in + s->ahead);
    }
    s->next = in + s->ahead;
    prefetch_lines(s, (others + CACHE_LINE - 1) / CACHE_LINE);
}
/* Word `word` of the rows of vector `vec`. One word of all rows is a cache line. */
INLINE ints stream(struct sink * s, const char * p, int word, int vec) {
    if (word % PANEL_VECTORS == 0) {
        prefetch_lines(s, 1);
    }
    return load_words(p + word * QUAD + vec * 4 * LANES);
}

INLINE const char * staged_at(const struct sink * s, int record) {
    return s->x + record * s->multiplies * STAGED_RECORD(s->record_elements, s->form);
}
/* A number of a record of token t: its scale is number 0, the start of its sums 1, scale * sum of codes 2. */
INLINE ints staged_number(const struct sink * s, int record, int number, int t) {
    const int codes = STAGED_RECORD(s->record_elements, s->form) - 12;
    return four_bytes(staged_at(s, record) + codes * s->multiplies + (number * s->multiplies + t) * 4);
}
INLINE void open_record(struct sink * s, int slot, int record) {
    EACH_TOKEN { s->sum[t][slot] = s->form == FORM_S16 ? zeros() : staged_number(s, record, 1, t); }
}
/* Signed codes of 8 bits as FORM_OF_8 has them: for vpdpbusd, whose codes are unsigned, they count from -128. */
#if defined(QUANTS_AVX2) || defined(QUANTS_DOTPROD)
#define ZERO8 0
#define UNSIGNED_BYTES 0
INLINE ints of_8_bits(ints codes) { return codes; }
#else
#define ZERO8 128
#define UNSIGNED_BYTES 1 /* codes may use all 8 bits */
INLINE ints of_8_bits(ints codes) { return codes ^ bytes(0x80); }
#endif

/* Takes the codes of a quad for the rows of vector `vec`. In FORM_S16 they are signed, of 8 bits. */
INLINE void take(struct sink * s, int slot, int record, int quad, int vec, ints codes) {
#if defined(QUANTS_AVX2)
    const int wide = s->form == FORM_S16;
    const ints even = V(srai_epi16)(V(slli_epi16)(codes, 8), 8), odd = V(srai_epi16)(codes, 8); /* if wide */
#else
    enum { wide = 0 };
    const ints even = codes, odd = codes;
#endif
    EACH_TOKEN {
        const char * x = staged_at(s, record) + ((wide ? 2 : 1) * quad * s->multiplies + t) * 4;
        s->sum[t][slot] = add_products(s->form, s->sum[t][slot], wide ? even : codes, four_bytes(x));
        if (wide) {
            s->sum[t][slot] = add_products(s->form, s->sum[t][slot], odd, four_bytes(x + 4 * s->multiplies));
        }
    }
    if (s->multiplies) {
        return;
    }
    char * out = s->out + record * RECORD(s->record_elements, s->form, s->mins) +
                 (wide ? 2 : 1) * (quad * QUAD + vec * 4 * LANES);
    store_words(out, wide ? even : codes);
    if (wide) {
        store_words(out + 32, odd);
    }
}
/* Ends a record. The weight of code c is scale * (c - zero) + offset. */
INLINE void close_record(struct sink * s, int slot, int record, int vec, floats scale, floats offset) {
    EACH_TOKEN {
        s->span_sum[t] = V(fmadd_ps)(in_floats(s->form, s->sum[t][slot]), scale, s->span_sum[t]);
        if (s->mins) {
            s->total[t][vec] = V(fmadd_ps)(offset, as_floats(staged_number(s, record, 2, t)), s->total[t][vec]);
        }
    }
    if (s->multiplies) {
        return;
    }
    char * out =
        s->out + record * RECORD(s->record_elements, s->form, s->mins) + CODE_BYTES(s->record_elements, s->form);
    V(store_ps)((float *) out + vec * LANES, scale);
    if (s->mins) {
        V(store_ps)((float *) (out + NUMBERS) + vec * LANES, offset);
    }
}
/* Call this after the last record of a span. */
INLINE void close_span(struct sink * s, int record, int vec) {
    EACH_TOKEN {
        const floats scale = as_floats(staged_number(s, record, 0, t));
        s->total[t][vec] = V(fmadd_ps)(s->span_sum[t], scale, s->total[t][vec]);
        s->span_sum[t] = V(setzero_ps)();
    }
}
INLINE void next_records(struct sink * s, int n) {
    if (s->multiplies) {
        s->x += n * s->multiplies * STAGED_RECORD(s->record_elements, s->form);
    } else {
        s->out += n * RECORD(s->record_elements, s->form, s->mins);
    }
}

#endif
