/* Products with quantized weights by AVX-512 VNNI. */
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "hotshoe_quants.h"

#define QUANTS_AVX512_VNNI
#define SET hotshoe_quants_avx512_vnni
#include "hotshoe_quants_tiles.h"
#endif
