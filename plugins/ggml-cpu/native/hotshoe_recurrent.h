/* Ops of recurrent layers, as callbacks of ggml's custom ops (ggml_custom_4d). All tensors are F32, with contiguous
 * rows. dst is contiguous. */
#ifndef HOTSHOE_RECURRENT_H
#define HOTSHOE_RECURRENT_H

#include "hotshoe_kernels.h"

/* The most elements of a kernel of hotshoe_ssm_conv. */
enum { HOTSHOE_MAX_TAPS = 8 };

/* dst [channels, t, n] = the causal convolution over time of src[0], x [channels, t, n]. src[1]: the steps before x
 * [channels, kernel - 1, n]. src[2]: the weight [kernel, channels], contiguous. src[3], or NULL: the bias [channels].
 * ggml's op wants x and what was before it in one tensor, and transposed: making that takes longer than the op. */
HOTSHOE_API void hotshoe_ssm_conv(struct ggml_tensor * dst, int ith, int nth, void * userdata);

struct hotshoe_delta_params {
    float scale;
    int32_t tiled; /* whether head h reads the key head h % k_heads; otherwise h / (heads / k_heads) */
};

/* The gated delta rule: for each token and each head, S = S diag(exp(g)), then S = S + beta (v - S k) k^T and
 * y = scale S q. src: q and k [dk, k_heads, t, n], v [dv, heads, t, n], g [1 or dk, heads, t, n],
 * beta [1, heads, t, n], and the states S [dk, dv, heads, n]. dk is 64 or 128. dst [(t + dk) * heads * dv * n] has
 * y, like v, and after it the new states, like S. */
HOTSHOE_API void hotshoe_gated_delta(struct ggml_tensor * dst, int ith, int nth, void * userdata);

#endif
