/* Products with quantized weights by AVX2. */
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "hotshoe_quants.h"

#define QUANTS_AVX2
#define SET hotshoe_quants_avx2
#include "hotshoe_quants_tiles.h"
#endif
