/* hotshoe's own kernels, as callbacks of ggml's custom ops (ggml_custom_4d).
 * All work on F32 with contiguous rows; thread `ith` of `nth` does its share. */
#ifndef HOTSHOE_KERNELS_H
#define HOTSHOE_KERNELS_H

#include "ggml.h"

#if defined(_WIN32)
#define HOTSHOE_API __declspec(dllexport)
#else
#define HOTSHOE_API __attribute__((visibility("default")))
#endif

enum hotshoe_activation_kind {
    HOTSHOE_GELU_ERF = 0,
    HOTSHOE_GELU_TANH = 1,
    HOTSHOE_GELU_QUICK = 2,
    HOTSHOE_SOFTPLUS = 3
};

/* dst = act(src[0]), or act(src[0]) * src[1] where there is one; all of one shape, rows contiguous. userdata: the kind, an
 * int32_t. None of them comes from a table of half floats, as ggml's gelu and gelu_quick do, which are 2e-3 off.
 * A MiniLM-shaped forward (6 layers, hidden 384, ffn 1536, 800 tokens, F32, 2 Zen 4 cores) takes 120.5 ms with the exact
 * gelu, 132.9 with ggml_gelu_erf (scalar erff), 127.8 with ggml_gelu. Adding the bias in the same pass saved 0.05 ms a
 * layer, 0.3 percent: left out. */
HOTSHOE_API void hotshoe_activation(struct ggml_tensor * dst, int ith, int nth, void * userdata);

/* A ggml_log_callback that drops the text: ggml may log when Python is gone. */
HOTSHOE_API void hotshoe_log_discard(enum ggml_log_level level, const char * text, void * user_data);

/* The instruction set chosen at run time: "avx512", "avx2" or "generic". */
HOTSHOE_API const char * hotshoe_kernels_isa(void);

#endif
