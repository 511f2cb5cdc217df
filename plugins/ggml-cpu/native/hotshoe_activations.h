/* Activations without tables, as a callback of ggml's custom op (ggml_custom_4d). */
#ifndef HOTSHOE_ACTIVATIONS_H
#define HOTSHOE_ACTIVATIONS_H

#include "hotshoe_kernels.h"

enum hotshoe_activation_kind {
    HOTSHOE_GELU_ERF = 0,
    HOTSHOE_GELU_TANH = 1,
    HOTSHOE_GELU_QUICK = 2,
    HOTSHOE_SOFTPLUS = 3
};

/* dst = act(src[0]), or act(src[0]) * src[1] if there is a src[1]. All are F32 and of one shape, with contiguous rows.
 * userdata points to the kind, an int32_t. ggml's gelu and gelu_quick look results up in a table of half floats, which
 * are off by 2e-3; these compute them.
 * A MiniLM-shaped forward pass (6 layers, hidden 384, ffn 1536, 800 tokens, F32, 2 Zen 4 cores) takes 120.5 ms with the
 * exact gelu, 132.9 with ggml_gelu_erf (scalar erff), 127.8 with ggml_gelu. Adding the bias in the same pass saved
 * 0.05 ms a layer, 0.3 percent, and was left out. */
HOTSHOE_API void hotshoe_activation(struct ggml_tensor * dst, int ith, int nth, void * userdata);

#endif
