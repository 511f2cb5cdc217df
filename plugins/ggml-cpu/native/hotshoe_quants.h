/* y = act(x @ W.T + bias) + residual with W in one of ggml's quantized types, as a callback of ggml's custom op. */
#ifndef HOTSHOE_QUANTS_H
#define HOTSHOE_QUANTS_H

#include "hotshoe_linear.h"

/* 1 if there is a fast product for weights of this type (enum ggml_type) with rows of k elements, else 0. If it is 0,
 * do not call the other functions. */
HOTSHOE_API int hotshoe_quants_has(int type, int64_t k);

/* Whether a weight of this type and k may have a gate. hotshoe_quants_has must be 1 for them. */
HOTSHOE_API int hotshoe_quants_gates(int type, int64_t k, int separate_outliers);

/* Bytes of the packed weight (m, k): as many as in the file, with m rounded up to a multiple of 16. Its memory must be
 * zeroed before the first pack. */
HOTSHOE_API size_t hotshoe_quants_size(int type, int64_t k, int64_t m);

/* The most bytes of a packed weight with 16 rows of k elements that may be multiplied before it is packed. */
enum { HOTSHOE_MAX_PANEL = 512 << 10 };

/* Packs rows [first_row, first_row + n_rows) of W (m, k), given as the file has them. Several threads may pack
 * different rows at once. */
HOTSHOE_API void hotshoe_quants_pack(int type, int64_t k, int64_t m, int64_t first_row, int64_t n_rows,
                                     const void * rows, void * packed);

/* As hotshoe_linear for a packed weight, with the ggml type in params->format. One row is multiplied at the memory's
 * speed; several rows share what was unpacked (benchmarks/NOTES.md has the numbers). Activations are rounded to 8 bits,
 * with a scale in F32 for every 32 of them, or for every 128 if the type has blocks of 256. A row of the result depends
 * on its row of x only: not on the other rows, the number of threads, or the instruction set.
 * separate_outliers: a number is an outlier if it is ten times as large as the root mean square of its row. Numbers
 * that share a scale with an outlier are rounded to 16 bits: 8 for the number, and 8 for its rounding error.
 * A weight that is not packed yet, params->rows, gives the same bits, more slowly.
 * With a gate: dst = act(x @ gate.T) * (x @ W.T), without bias and residual; see hotshoe_quants_gates.
 * With params->next: the products of x with several weights, none with a residual, all with the same separate_outliers.
 * dst has their results one after the other, each (n, m) with its own m. The biases follow x, in the order of the
 * products that have one. */
HOTSHOE_API void hotshoe_quants(struct ggml_tensor * dst, int ith, int nth, void * userdata);

/* dst (n, used, m) F32: for each row of x the product with `used` of params->n_experts weights. The sources:
 *   x        (n, 1 or used, k) F32, rows contiguous
 *   experts  (n, used) I32, contiguous: the weight for each row of dst, below params->n_experts
 * There is no bias and no residual. An activation needs a gate, which has as many weights. Rows with the same weight
 * are multiplied together; each result is the same as that of hotshoe_quants. */
HOTSHOE_API void hotshoe_quants_experts(struct ggml_tensor * dst, int ith, int nth, void * userdata);

/* The ways in which weights are prefetched while a few tokens are multiplied: 1, one line of the next page for each
 * block; 2, every line 1 KiB ahead; 3, every line 8 KiB ahead. The fastest is found while computing: see
 * prefetch_choice.h. */
enum { HOTSHOE_PREFETCH_WAYS = 3 };

/* The way that weights of this type are prefetched now for one token, or 0 while ways are compared. speeds:
 * HOTSHOE_PREFETCH_WAYS numbers, the bytes a nanosecond that one thread read in each way when they were compared last;
 * 0 before that. */
HOTSHOE_API int hotshoe_quants_prefetch(int type, float * speeds);

/* Makes all products use this way; 0: the fastest. */
HOTSHOE_API void hotshoe_quants_force_prefetch(int way);

#endif
