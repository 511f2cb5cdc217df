/* Products with quantized weights by AVX-VNNI. */
#include "isa.h"

#if defined(HOTSHOE_X86)
#include "hotshoe_quants.h"
#include "hotshoe_quants_set.h"

#if defined(HOTSHOE_AVX_VNNI)
#define QUANTS_AVX_VNNI
#define SET hotshoe_quants_avx_vnni
#include "hotshoe_quants_tiles.h"
#endif
#endif
