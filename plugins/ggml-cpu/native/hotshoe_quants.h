/* y = act(x @ W.T + bias) + residual with W in one of ggml's quantized types, as a callback of ggml's custom op. */
#ifndef HOTSHOE_QUANTS_H
#define HOTSHOE_QUANTS_H

#include "hotshoe_linear.h"

/* Whether there is a fast product here for weights of this type (enum ggml_type) with rows of k elements. Where it says
 * 0, call none of the others. */
HOTSHOE_API int hotshoe_quants_has(int type, int64_t k);

/* Whether a weight of this type and k, for which hotshoe_quants_has says 1, may have a gate. */
HOTSHOE_API int hotshoe_quants_gates(int type, int64_t k, int outliers_apart);

/* Bytes of the packed weight: those of the file, with the rows made up to a multiple of 16. Its memory must be zeroed
 * before the first pack. */
HOTSHOE_API size_t hotshoe_quants_size(int type, int64_t k, int64_t m);

/* Packs rows [first_row, first_row + n_rows) of W (m, k), given as they lie in the file. Different rows may be packed by
 * different threads at once. */
HOTSHOE_API void hotshoe_quants_pack(int type, int64_t k, int64_t m, int64_t first_row, int64_t n_rows,
                                     const void * rows, void * packed);

/* As hotshoe_linear, with the ggml type in the place of params->format. One row is multiplied at the memory's speed; more
 * share what was unpacked (benchmarks/NOTES.md has the numbers). Activations are rounded to 8 bits, with a scale in F32 for
 * every 32, or for 128 where the type has blocks of 256. A row of the result depends on its row of x only, not on the
 * others, nor on the number of threads or the instruction set.
 * With outliers_apart numbers that share a scale with one ten times as large as their row's root mean square are rounded to
 * 16 bits: 8 of the numbers and 8 of what these leave.
 * With a gate: act(x @ gate.T) * (x @ W.T), without bias and residual; k as hotshoe_quants_gates says. */
HOTSHOE_API void hotshoe_quants(struct ggml_tensor * dst, int ith, int nth, void * userdata);

/* dst (n, used, m) F32 from src: x (n, 1 or used, k) F32, rows contiguous, and the weight for each row of dst, (n, used) I32,
 * contiguous, each less than params->n_experts. Neither bias nor residual; an activation only with a gate, which has as many
 * weights. The rows of one weight are multiplied together, and each is what hotshoe_quants makes of it. */
HOTSHOE_API void hotshoe_quants_experts(struct ggml_tensor * dst, int ith, int nth, void * userdata);

#endif
