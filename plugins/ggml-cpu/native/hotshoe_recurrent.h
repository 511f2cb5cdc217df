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

struct hotshoe_recurrence_params {
    float scale;
    int32_t tiled;    /* whether head h reads the key head h % k_heads; otherwise h / (heads / k_heads) */
    int32_t corrects; /* whether what the state knows of a key is taken from its value: the delta rule */
};

/* Linear attention. For each token and each head, S = S diag(exp(g)), then S = S + beta u k^T and y = scale S q, where
 * u is v - S k with the delta rule (Yang et al. 2024, arXiv:2412.06464), and v without, as in Mamba-2 (Dao & Gu 2024,
 * arXiv:2405.21060).
 *
 * src: q and k [dk, k_heads, t, n]; v [dv, heads, t, n]; g [1, heads, t, n], with the delta rule also
 * [dk, heads, t, n]; beta [1, heads, t, n]; the states S [dk, dv, heads, n]. dk is 64, 128 or 256. dst, in one axis,
 * has y, like v, and after it the new states, like S.
 *
 * With src[6] and src[7] the states stay where they are. src[5] is then a cache [dk * dv * heads, rows], src[6] has the
 * row of each old state, and src[7] that of each new one, both I32 [n]. dst has only y; with n > 1 the rest of it is
 * room for states, for rows that are written before another sequence reads them. */
HOTSHOE_API void hotshoe_linear_attention(struct ggml_tensor * dst, int ith, int nth, void * userdata);

#endif
