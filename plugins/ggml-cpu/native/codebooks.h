/* Codebooks: the numbers that the 16 codes of a block format stand for. */
#ifndef HOTSHOE_CODEBOOKS_H
#define HOTSHOE_CODEBOOKS_H

#include <stdint.h>

/* IQ4_NL and IQ4_XS. */
static const int8_t iq4_codebook[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
/* MXFP4: twice the number, plus 12. */
static const int8_t fp4_codebook[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

#endif
