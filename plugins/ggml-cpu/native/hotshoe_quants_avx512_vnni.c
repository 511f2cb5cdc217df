/* Products with quantized weights by AVX-512 VNNI. */
#include "isa.h"

#if defined(HOTSHOE_X86)
#include "hotshoe_quants.h"

#define QUANTS_AVX512_VNNI
#define SET hotshoe_quants_avx512_vnni
#include "hotshoe_quants_tiles.h"
#endif
