/* Products with quantized weights by the dot products of ARM. */
#include "isa.h"

#if defined(HOTSHOE_ARM)
#include "hotshoe_quants.h"

#define QUANTS_DOTPROD
#define SET hotshoe_quants_dotprod
#include "hotshoe_quants_tiles.h"
#endif
