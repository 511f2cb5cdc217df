/* Products with quantized weights by AVX2. */
#include "isa.h"

#if defined(HOTSHOE_X86)
#include "hotshoe_quants.h"

#define QUANTS_AVX2
#define SET hotshoe_quants_avx2
#include "hotshoe_quants_tiles.h"
#endif
