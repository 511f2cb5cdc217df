/* What the headers of hotshoe's own kernels share. The kernels are callbacks of ggml's custom ops (ggml_custom_4d):
 * each of `nth` threads calls one with its number `ith` and computes its share of dst. tools/gen_ffi.py reads these
 * headers: Python declares their enums, structs and functions.
 *
 * Words of all matrix products:
 *   panel      16 or 32 rows of a weight, stored so that one vector reads the same column of several rows
 *   tile       some tokens by one or two panels: as many as have their sums in registers
 *   group      the tokens that are multiplied by a panel while it is in the cache
 *   staging    copying the activations of a group in the order in which tiles read them
 *   depth      the elements of a row that are staged at once
 *   work item  the smallest share of a product that a thread takes: one panel by one group */
#ifndef HOTSHOE_KERNELS_H
#define HOTSHOE_KERNELS_H

#include "ggml.h"

#if defined(_WIN32)
#define HOTSHOE_API __declspec(dllexport)
#else
#define HOTSHOE_API __attribute__((visibility("default")))
#endif

/* Bytes of memory that each thread of a pool has for the kernels, one thread's after the other's, from the start of a
 * page. Products and attention find its address in their params. They use it during a call only, so all nodes of the
 * pool share it. A stack would be too small: some threads have 128 KiB. */
enum { HOTSHOE_SCRATCH = 1 << 20 };

/* A ggml_log_callback that discards the text: ggml may log after Python has ended. */
HOTSHOE_API void hotshoe_log_discard(enum ggml_log_level level, const char * text, void * user_data);

/* Where hotshoe_log_filter passes messages of level `least` and above. The levels: debug, info, warning, error. */
struct hotshoe_log {
    ggml_log_callback callback;
    int least;
};

/* A ggml_log_callback, with a struct hotshoe_log as user_data. Other messages must not cost a callback into Python,
 * which waits for its lock: CUDA writes one for each graph that it computes. */
HOTSHOE_API void hotshoe_log_filter(enum ggml_log_level level, const char * text, void * user_data);

/* The instruction set chosen at run time: "avx512", "avx2" or "generic". */
HOTSHOE_API const char * hotshoe_kernels_isa(void);

#endif
