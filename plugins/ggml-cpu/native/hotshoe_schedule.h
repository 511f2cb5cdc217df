/* Runs graphs on several units (opened devices), whose temporaries share the memory of one arena.
 *
 * A schedule is made once for each graph: where each node runs, what is copied between units, and where each temporary
 * lies. It stays valid while the arena keeps its buffers. So going from one graph to another costs nothing, and a
 * device finds the same graph at the same addresses. ggml's own scheduler plans one graph at a time, and plans it again
 * after another one. */
#ifndef HOTSHOE_SCHEDULE_H
#define HOTSHOE_SCHEDULE_H

#include "hotshoe_kernels.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"

enum { HOTSHOE_MAX_UNITS = 32 };

/* The functions of the process's libggml-base. This library does not link to one: the user may choose another. */
struct hotshoe_ggml {
    ggml_gallocr_t (*gallocr_new_n)(ggml_backend_buffer_type_t * types, int n);
    void (*gallocr_free)(ggml_gallocr_t allocator);
    bool (*gallocr_reserve_n)(ggml_gallocr_t allocator, struct ggml_cgraph * graph, const int * nodes,
                              const int * leafs);
    void (*gallocr_reserve_n_size)(ggml_gallocr_t allocator, struct ggml_cgraph * graph, const int * nodes,
                                   const int * leafs, size_t * sizes);
    bool (*gallocr_alloc_graph)(ggml_gallocr_t allocator, struct ggml_cgraph * graph);
    size_t (*gallocr_get_buffer_size)(ggml_gallocr_t allocator, int id);
    size_t (*buft_get_max_size)(ggml_backend_buffer_type_t type);
    bool (*buft_is_host)(ggml_backend_buffer_type_t type);
    bool (*supports_buft)(ggml_backend_t unit, ggml_backend_buffer_type_t type);
    size_t (*nbytes)(const struct ggml_tensor * tensor);
    void (*tensor_copy)(struct ggml_tensor * from, struct ggml_tensor * to);
    void (*tensor_set_async)(ggml_backend_t unit, struct ggml_tensor * tensor, const void * data, size_t offset,
                             size_t size);
    enum ggml_status (*graph_compute_async)(ggml_backend_t unit, struct ggml_cgraph * graph);
    void (*synchronize)(ggml_backend_t unit);
    void (*build_forward_expand)(struct ggml_cgraph * graph, struct ggml_tensor * tensor);
};

/* An arena: a buffer for each type of memory, as large as the largest graph needs. Allocates nothing yet. types: of the
 * units' temporaries. reorders: whether a library may change the order of its nodes; its function must be that of the
 * ggml that this file was compiled with. capturing: bits of the units that capture a graph which they get twice. NULL
 * if there is no memory. */
HOTSHOE_API struct hotshoe_arena * hotshoe_arena_new(const struct hotshoe_ggml * ggml, const ggml_backend_t * units,
                                                     const ggml_backend_buffer_type_t * types, int n, bool reorders,
                                                     uint32_t capturing);
HOTSHOE_API void hotshoe_arena_free(struct hotshoe_arena * arena);

/* Bytes of the buffer of a unit; 0 if it is that of an earlier unit. */
HOTSHOE_API size_t hotshoe_arena_size(const struct hotshoe_arena * arena, int unit);

/* Wait for all that is queued on the units. */
HOTSHOE_API void hotshoe_arena_synchronize(const struct hotshoe_arena * arena);

/* Name n tensors and add them to a graph, each after its sources. names: each ends with 0. numbers: of the tensors.
 * added_by: has room for all nodes of the graph, and gets for each the number of the tensor that it was added for. */
HOTSHOE_API void hotshoe_add_nodes(const struct hotshoe_ggml * ggml, struct ggml_cgraph * graph,
                                   struct ggml_tensor ** tensors, int n, const char * names, const int8_t * numbers,
                                   int8_t * added_by);

/* For each node of a graph, the first one that no library can tell from it: of the same op, parameters, types, sizes,
 * strides and kinds of memory, as are its sources. false: no memory. */
HOTSHOE_API bool hotshoe_alike(const struct ggml_cgraph * graph, int32_t * first);

/* Plan a graph. node_units: the number of the unit of each node; it is ignored for views. NULL: 0 for all. inputs:
 * leaves without memory. Each lies on the unit that reads it, or on the last one if several do. Sources that a unit
 * cannot read are replaced by copies. The arena and the graph must live as long as the schedule. NULL if there is no
 * memory. */
HOTSHOE_API struct hotshoe_schedule * hotshoe_schedule_new(struct hotshoe_arena * arena, struct ggml_cgraph * graph,
                                                           const int8_t * node_units, struct ggml_tensor ** inputs,
                                                           int n_inputs);
HOTSHOE_API void hotshoe_schedule_free(struct hotshoe_schedule * schedule);
HOTSHOE_API int hotshoe_schedule_n_splits(const struct hotshoe_schedule * schedule);
HOTSHOE_API int hotshoe_schedule_n_copies(const struct hotshoe_schedule * schedule);

/* The unit that computes a node, or the only one that reads an input; -1 for other tensors. */
HOTSHOE_API int hotshoe_schedule_unit(const struct hotshoe_schedule * schedule, const struct ggml_tensor * tensor);

/* Give the graph its memory, unless it has it. May make the arena's buffers larger: then all other graphs lose theirs.
 * false if a unit has too little memory. */
HOTSHOE_API bool hotshoe_schedule_allocate(struct hotshoe_schedule * schedule);

/* Whether giving the graph its memory may move buffers of the arena, which a running graph uses; false if it has its
 * memory. If it has none, it is planned, and the plan is dropped. */
HOTSHOE_API bool hotshoe_schedule_grows(struct hotshoe_schedule * schedule);

/* Bytes by unit that the graph needs by itself; 0 for a unit whose buffer is that of an earlier one. */
HOTSHOE_API void hotshoe_schedule_sizes(struct hotshoe_schedule * schedule, size_t * sizes);

/* Queue the graph, which has memory, on its units. */
HOTSHOE_API enum ggml_status hotshoe_schedule_compute(struct hotshoe_schedule * schedule);

#endif
