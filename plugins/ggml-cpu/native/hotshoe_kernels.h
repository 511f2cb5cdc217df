/* hotshoe's own kernels, as callbacks of ggml's custom ops (ggml_map_custom1).
 * All work on F32 with contiguous rows; thread `ith` of `nth` does its share. */
#ifndef HOTSHOE_KERNELS_H
#define HOTSHOE_KERNELS_H

#include "ggml.h"

#if defined(_WIN32)
#define HOTSHOE_API __declspec(dllexport)
#else
#define HOTSHOE_API __attribute__((visibility("default")))
#endif

/* dst = gelu(a), the exact one: a * Phi(a). a and dst have one shape.
 * A MiniLM-shaped forward (6 layers, hidden 384, ffn 1536, 800 tokens, F32, 2 Zen 4 cores) takes 120.5 ms with it, 132.9
 * with ggml_gelu_erf (scalar erff), 127.8 with ggml_gelu (the tanh approximation, from a table of half floats). Adding the
 * bias in the same pass saved 0.05 ms a layer, 0.3 percent: left out. */
HOTSHOE_API void hotshoe_gelu_erf(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth,
                                  void * userdata);

/* A ggml_log_callback that drops the text: ggml may log when Python is gone. */
HOTSHOE_API void hotshoe_log_discard(enum ggml_log_level level, const char * text, void * user_data);

/* The instruction set chosen at run time: "avx512", "avx2" or "generic". */
HOTSHOE_API const char * hotshoe_kernels_isa(void);

#endif
