/* Records: what the products with quantized weights multiply at once (hotshoe_quants_unpack.h describes them), and the sink
 * into which the packed blocks of a type are read. */
#ifndef HOTSHOE_QUANTS_RECORDS_H
#define HOTSHOE_QUANTS_RECORDS_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "activations.h"

#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define INLINE_AVX2 AVX2 ALWAYS_INLINE
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* How codes are multiplied: unsigned ones of up to 6 bits in pairs, summed in 16 bits; signed ones of 8 bits as 16; or all of
 * them unsigned in fours, summed in 32 bits, by AVX-512 VNNI. Their integers are the same, and so are all results. */
enum form { FORM_U8, FORM_S16, FORM_DOT };

enum {
    ROWS = 16, /* of a panel */
    HALF = 8,  /* of a vector */
    GROUP = 4 * ROWS,             /* bytes of a group of codes of 8 bits */
    NUMBERS = ROWS * (int) sizeof(float), /* bytes of one number for each row */
};

#define CODE_BYTES(block, form) (ROWS * (block) * ((form) == FORM_S16 ? 2 : 1))
#define RECORD(block, form, mins) (CODE_BYTES(block, form) + NUMBERS * ((mins) ? 2 : 1))
/* A record of activations, for each token: codes, a scale, what sums of products start with, scale * sum of codes. */
#define STAGED_RECORD(block, form) ((block) * ((form) == FORM_S16 ? 2 : 1) + 12)

INLINE_AVX2 __m256i words(const char * p) { return _mm256_loadu_si256((const __m256i *) p); }
INLINE_AVX2 __m256 halves(const char * p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p)); }
INLINE_AVX2 __m256i bytes(int value) { return _mm256_set1_epi8((char) value); }
INLINE_AVX2 __m256i low(__m256i v, int mask) { return _mm256_and_si256(v, bytes(mask)); }
INLINE_AVX2 __m256i high(__m256i v, int shift, int mask) { return low(_mm256_srli_epi16(v, shift), mask); }
INLINE_AVX2 __m256 byte_of(__m256i v, int i) {
    return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(v, 8 * i), _mm256_set1_epi32(255)));
}
INLINE_AVX2 __m256 signed_byte_of(__m256i v, int i) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(v, 24 - 8 * i), 24));
}
INLINE_AVX2 __m256i four_bytes(const char * at) {
    int32_t value;
    memcpy(&value, at, 4);
    return _mm256_set1_epi32(value);
}

/* Added now: GCC would gather all products of a block first, and spill them. */
#define ADD_NOW(sum) __asm__("" : "+x"(sum))

/* vpmaddubsw: the products of an unsigned and a signed byte, two added to 16 bits without saturation, for 63 * 127 * 2 fits. The
 * sums of a block wrap around, which does no harm: what they start with takes `zero` from each code, and the final sum of 16
 * (block 32) or 8 products of codes within [-16, 15] or [-32, 31] fits in 16 bits. */
INLINE_AVX2 __m256i add_u8(__m256i sum, __m256i codes, __m256i x) {
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, x));
    ADD_NOW(sum);
    return sum;
}
/* Codes of 8 bits: vpmaddubsw would saturate, and taking them apart or moving signs costs as much as vpmaddwd, which
 * multiplies half as many at once. */
INLINE_AVX2 __m256i add_s16(__m256i sum, __m256i codes, __m256i x) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(codes, x));
    ADD_NOW(sum);
    return sum;
}

/* A block's integers become floats: total += integers * scale of the token * scales of the rows. numbers: the token's, `apart`
 * bytes from one to the next. */
INLINE_AVX2 __m256 close_sum(int form, int mins, __m256 total, __m256i sum, const char * numbers, int apart, __m256 scale,
                             __m256 least) {
    const __m256i integers = form == FORM_U8 ? _mm256_madd_epi16(sum, _mm256_set1_epi16(1)) : sum;
    const __m256 token = _mm256_castsi256_ps(four_bytes(numbers));
    total = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(integers), token), scale, total);
    return mins ? _mm256_fmadd_ps(least, _mm256_castsi256_ps(four_bytes(numbers + 2 * apart)), total) : total;
}

/* Where the codes of packed blocks go: into records, or, where there is one token only, straight into its sums. */
struct sink {
    int direct;            /* into sums */
    int block, form, mins; /* of a record */
    char * out;            /* the records */
    const char * x;        /* the token's records */
    __m256 total[2];       /* the sums of 16 rows so far */
    __m256i sum[8];        /* those of records that are open, by slot */
    const char * ahead;    /* the line that is asked for next */
};

/* What is read soon is asked for, each line once and in the order of addresses, whatever order codes are read in: a core then
 * reads at the memory's speed. In the order of the reads it was 9 GB/s of 16 for Q6_K, and without asking 6. */
INLINE_AVX2 void ask(struct sink * s, int lines) {
    UNROLL for (int i = 0; i < lines; ++i, s->ahead += GROUP) {
        _mm_prefetch(s->ahead, _MM_HINT_T0);
    }
}
/* Before a packed block is read, from `in` on: `others` bytes there are no codes, and asked for at once. */
INLINE_AVX2 void open_block(struct sink * s, const char * in, int others) {
    enum { AHEAD = 4096 };
    s->ahead = in + AHEAD;
    ask(s, (others + GROUP - 1) / GROUP);
}
/* Word `word` of 8 rows: those from `half` on. Two reads of two words ask for two lines. */
INLINE_AVX2 __m256i stream(struct sink * s, const char * p, int word, int half) {
    if (word % 2 == 0) {
        ask(s, 1);
    }
    return words(p + word * GROUP + half * 32);
}

INLINE_AVX2 const char * staged_at(const struct sink * s, int record) {
    return s->x + record * STAGED_RECORD(s->block, s->form);
}
INLINE_AVX2 void open_record(struct sink * s, int slot, int record) {
    if (s->direct) {
        const int start = STAGED_RECORD(s->block, s->form) - 8;
        s->sum[slot] = s->form == FORM_U8 ? four_bytes(staged_at(s, record) + start) : _mm256_setzero_si256();
    }
}
/* The codes of a group for 8 rows; those of FORM_S16 and FORM_DOT with their sign, in 8 bits. */
INLINE_AVX2 void take(struct sink * s, int slot, int record, int group, int half, __m256i codes) {
    const int wide = s->form == FORM_S16;
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 8), odd = _mm256_srai_epi16(codes, 8); /* if wide */
    if (s->direct) {
        const char * x = staged_at(s, record) + group * (wide ? 8 : 4);
        if (wide) {
            s->sum[slot] = add_s16(s->sum[slot], even, four_bytes(x));
            s->sum[slot] = add_s16(s->sum[slot], odd, four_bytes(x + 4));
        } else {
            s->sum[slot] = add_u8(s->sum[slot], codes, four_bytes(x));
        }
        return;
    }
    char * out = s->out + record * RECORD(s->block, s->form, s->mins) + (wide ? 2 : 1) * (group * GROUP + half * 32);
    if (s->form == FORM_DOT) {
        codes = _mm256_xor_si256(codes, bytes(0x80));
    }
    _mm256_store_si256((__m256i *) out, wide ? even : codes);
    if (wide) {
        _mm256_store_si256((__m256i *) (out + 32), odd);
    }
}
INLINE_AVX2 void close_record(struct sink * s, int slot, int record, int half, __m256 scale, __m256 least) {
    if (s->direct) {
        const char * numbers = staged_at(s, record) + STAGED_RECORD(s->block, s->form) - 12;
        s->total[half] = close_sum(s->form, s->mins, s->total[half], s->sum[slot], numbers, 4, scale, least);
        return;
    }
    char * out = s->out + record * RECORD(s->block, s->form, s->mins) + CODE_BYTES(s->block, s->form);
    _mm256_store_ps((float *) out + half * HALF, scale);
    if (s->mins) {
        _mm256_store_ps((float *) (out + NUMBERS) + half * HALF, least);
    }
}
INLINE_AVX2 void next_records(struct sink * s, int n) {
    if (s->direct) {
        s->x += n * STAGED_RECORD(s->block, s->form);
    } else {
        s->out += n * RECORD(s->block, s->form, s->mins);
    }
}

#endif
