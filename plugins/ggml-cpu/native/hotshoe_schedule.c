/* See hotshoe_schedule.h. This file knows the fields of ggml_cgraph, ggml_backend and ggml_backend_buffer. */
#include "hotshoe_schedule.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MANY_ROWS = 128 };

struct hotshoe_arena {
    struct hotshoe_ggml g;
    int n;
    ggml_backend_t units[HOTSHOE_MAX_UNITS];
    ggml_backend_buffer_type_t types[HOTSHOE_MAX_UNITS];
    int ids[HOTSHOE_MAX_UNITS]; /* of the buffer of each unit's type */
    int n_ids;
    ggml_backend_buffer_type_t types_by_id[HOTSHOE_MAX_UNITS];
    ggml_gallocr_t allocator;
    bool reorders;
    uint32_t capturing;  /* bits of units that capture a graph which they get twice */
    bool keeps;          /* whether addresses stay valid while another graph gets its memory */
    uint64_t generation; /* changes whenever addresses become invalid */
};

/* A value that one unit has and another one reads. */
struct copied {
    struct ggml_tensor * source;
    struct ggml_tensor copy;
    struct ggml_tensor reader; /* for the allocator: reads the source when the copy is made */
    int source_unit, unit;
    bool on_host; /* whether the source is in the host's memory: the unit that reads it may do so later */
};

/* Nodes [first, end) of the graph, which run on one unit, and the copies that are made before. */
struct split {
    struct ggml_cgraph graph;
    int unit, first, end, first_copy, n_copies;
    uint32_t awaited; /* bits of the units that this split waits for, as they use the memory that it writes */
    bool renewed;     /* whether its device must not know it again */
};

struct place {
    const struct ggml_tensor * tensor;
    int unit;
    bool shared; /* an input that several units read, or none */
};

struct hotshoe_schedule {
    struct hotshoe_arena * arena;
    struct ggml_cgraph * graph;
    struct place * places; /* a hash table: the unit of each node that computes, and of inputs */
    size_t n_places;
    struct split * splits;
    int n_splits;
    struct copied * copies;
    int n_copies;
    struct ggml_cgraph whole; /* for the allocator: the graph with copies among its nodes */
    int * node_ids;
    int * leaf_ids;
    struct ggml_tensor ** given; /* the tensors that the allocator gives memory */
    int n_given;
    uint64_t generation; /* of the arena when the graph got its memory; 0: it has none */
};

/* Far from those that ggml gives. Atomic: ggml's RPC knows the last graph of a device by it, for all backends. */
static _Atomic uint64_t next_uid = (uint64_t) 1 << 62;

struct hotshoe_arena * hotshoe_arena_new(const struct hotshoe_ggml * ggml, const ggml_backend_t * units,
                                         const ggml_backend_buffer_type_t * types, int n, bool reorders,
                                         uint32_t capturing) {
    struct hotshoe_arena * arena = calloc(1, sizeof *arena);
    if (arena == NULL || n > HOTSHOE_MAX_UNITS) {
        free(arena);
        return NULL;
    }
    arena->g = *ggml;
    arena->n = n;
    for (int i = 0; i < n; i++) {
        arena->units[i] = units[i];
        arena->types[i] = types[i];
        int id = 0;
        while (id < arena->n_ids && arena->types_by_id[id] != types[i]) {
            id++;
        }
        arena->ids[i] = id;
        arena->types_by_id[id] = types[i];
        arena->n_ids += id == arena->n_ids;
    }
    arena->allocator = arena->g.gallocr_new_n(arena->types_by_id, arena->n_ids);
    arena->reorders = reorders;
    arena->capturing = capturing;
    arena->keeps = true;
    arena->generation = 1;
    return arena;
}

void hotshoe_arena_free(struct hotshoe_arena * arena) {
    if (arena != NULL) {
        arena->g.gallocr_free(arena->allocator);
        free(arena);
    }
}

static bool is_first_of_its_type(const struct hotshoe_arena * arena, int unit) {
    for (int i = 0; i < unit; i++) {
        if (arena->ids[i] == arena->ids[unit]) {
            return false;
        }
    }
    return true;
}

size_t hotshoe_arena_size(const struct hotshoe_arena * arena, int unit) {
    return is_first_of_its_type(arena, unit) ? arena->g.gallocr_get_buffer_size(arena->allocator, arena->ids[unit]) : 0;
}

void hotshoe_arena_synchronize(const struct hotshoe_arena * arena) {
    for (int i = 0; i < arena->n; i++) {
        arena->g.synchronize(arena->units[i]);
    }
}

static bool is_view(const struct ggml_tensor * t) {
    return t->op == GGML_OP_RESHAPE || t->op == GGML_OP_VIEW || t->op == GGML_OP_PERMUTE || t->op == GGML_OP_TRANSPOSE;
}

static const struct ggml_backend_buffer * buffer_of(const struct ggml_tensor * t) {
    return t->view_src != NULL ? t->view_src->buffer : t->buffer;
}

/* The type of memory that a tensor has; NULL for none. */
static ggml_backend_buffer_type_t memory_of(const struct ggml_tensor * t) {
    return buffer_of(t) == NULL ? NULL : buffer_of(t)->buft;
}

static bool is_weight(const struct ggml_tensor * t) {
    return buffer_of(t) != NULL && buffer_of(t)->usage == GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
}

/* The entry of a tensor in the hash table, or the empty one where it belongs. */
static struct place * find_place(const struct hotshoe_schedule * s, const struct ggml_tensor * tensor) {
    size_t i = (size_t) (((uintptr_t) tensor >> 4) * (uintptr_t) 0x9E3779B1u) & (s->n_places - 1);
    while (s->places[i].tensor != NULL && s->places[i].tensor != tensor) {
        i = (i + 1) & (s->n_places - 1);
    }
    return &s->places[i];
}

static void set_place(struct hotshoe_schedule * s, const struct ggml_tensor * tensor, int unit) {
    *find_place(s, tensor) = (struct place){tensor, unit, false};
}

/* The unit in whose memory a tensor is, before any temporary has memory. */
static int unit_of(const struct hotshoe_schedule * s, const struct ggml_tensor * t) {
    const struct hotshoe_arena * arena = s->arena;
    for (; t != NULL; t = t->view_src) {
        const struct place * place = find_place(s, t);
        if (place->tensor != NULL) {
            return place->unit;
        }
        if (t->buffer != NULL) {
            for (int i = 0; i < arena->n; i++) {
                if (arena->g.supports_buft(arena->units[i], t->buffer->buft)) {
                    return i;
                }
            }
            break;
        }
    }
    return arena->n - 1;
}

/* The type of memory in which a tensor is, or will be. */
static ggml_backend_buffer_type_t type_of(const struct hotshoe_schedule * s, const struct ggml_tensor * t) {
    return memory_of(t) != NULL ? memory_of(t) : s->arena->types[unit_of(s, t)];
}

static bool can_read(const struct hotshoe_schedule * s, int unit, const struct ggml_tensor * t) {
    const struct hotshoe_arena * arena = s->arena;
    return unit_of(s, t) == unit || arena->g.supports_buft(arena->units[unit], type_of(s, t));
}

static struct ggml_tensor * find_copy(struct hotshoe_schedule * s, const struct ggml_tensor * source, int unit) {
    for (int i = s->n_copies; i-- > 0;) {
        if (s->copies[i].source == source && s->copies[i].unit == unit) {
            return &s->copies[i].copy;
        }
    }
    return NULL;
}

static struct ggml_tensor * add_copy(struct hotshoe_schedule * s, struct ggml_tensor * source, int unit) {
    struct copied * c = &s->copies[s->n_copies++];
    c->source = source;
    c->source_unit = unit_of(s, source);
    c->unit = unit;
    c->copy.type = c->reader.type = source->type;
    memcpy(c->copy.ne, source->ne, sizeof source->ne);
    memcpy(c->copy.nb, source->nb, sizeof source->nb);
    memcpy(c->reader.ne, source->ne, sizeof source->ne);
    memcpy(c->reader.nb, source->nb, sizeof source->nb);
    c->reader.src[0] = source;
    c->reader.view_src = source->view_src != NULL ? source->view_src : source;
    c->reader.view_offs = source->view_offs;
    snprintf(c->copy.name, sizeof c->copy.name, "%.*s (copy)", (int) sizeof c->copy.name - 8, source->name);
    snprintf(c->reader.name, sizeof c->reader.name, "%.*s (read)", (int) sizeof c->reader.name - 8, source->name);
    return &c->copy;
}

/* Whether a node begins a split of its own, as it reads a weight of another unit: the memory of the copies of earlier
 * weights is free then. */
static bool reads_another_weight(struct hotshoe_schedule * s, const struct ggml_tensor * node, int unit) {
    for (int j = 0; j < GGML_MAX_SRC; j++) {
        const struct ggml_tensor * source = node->src[j];
        if (source != NULL && is_weight(source) && !can_read(s, unit, source)) {
            return true;
        }
    }
    return false;
}

/* Divide the graph into splits, and replace sources that a unit cannot read by copies. false: no memory. */
static bool divide(struct hotshoe_schedule * s) {
    struct ggml_cgraph * graph = s->graph;
    int n_units = 1, n_crossing = 0, unit = -1;
    for (int i = 0; i < graph->n_nodes; i++) {
        const struct ggml_tensor * node = graph->nodes[i];
        if (is_view(node)) {
            continue;
        }
        const int own = find_place(s, node)->unit;
        n_units += own != unit;
        unit = own;
        for (int j = 0; j < GGML_MAX_SRC; j++) {
            n_crossing += node->src[j] != NULL && !can_read(s, own, node->src[j]);
        }
    }
    s->copies = calloc((size_t) n_crossing + 1, sizeof *s->copies);
    s->splits = calloc((size_t) n_units + (size_t) n_crossing + 1, sizeof *s->splits);
    if (s->copies == NULL || s->splits == NULL) {
        return false;
    }
    struct split * split = NULL;
    for (int i = 0; i < graph->n_nodes; i++) {
        struct ggml_tensor * node = graph->nodes[i];
        if (is_view(node)) {
            continue;
        }
        const int own = find_place(s, node)->unit;
        if (split == NULL || split->unit != own || (split->n_copies > 0 && reads_another_weight(s, node, own))) {
            if (split != NULL) {
                split->end = i;
            }
            split = &s->splits[s->n_splits++];
            split->unit = own;
            split->first = s->n_splits == 1 ? 0 : i;
            split->first_copy = s->n_copies;
        }
        for (int j = 0; j < GGML_MAX_SRC; j++) {
            struct ggml_tensor * source = node->src[j];
            if (source == NULL || can_read(s, own, source)) {
                continue;
            }
            struct ggml_tensor * copy = find_copy(s, source, own);
            if (copy == NULL) {
                copy = add_copy(s, source, own);
                split->n_copies++;
            }
            node->src[j] = copy;
        }
    }
    if (split == NULL) { /* views only */
        split = &s->splits[s->n_splits++];
        split->unit = s->arena->n - 1;
    }
    split->end = graph->n_nodes;
    return true;
}

/* CUDA replays a captured graph if its nodes have the same bytes, and their sources the same addresses, sizes and
 * strides. It does not compare the types of the sources. So each graph gets a number of its own in the padding of its
 * first node, which CUDA compares too and no kernel reads. */
static void mark(struct split * split) {
    if (split->graph.n_nodes > 0) {
        const uint64_t own = atomic_fetch_add_explicit(&next_uid, 1, memory_order_relaxed);
        memcpy(split->graph.nodes[0]->padding, &own, sizeof own);
    }
}

/* Whether the device computes longer than the host queues the nodes. Capturing such a graph saves nothing, and delays
 * its second run: by 12 of 24 ms for 512 tokens of a model with a billion parameters, on an H200. */
static bool has_large_product(const struct ggml_cgraph * graph) {
    for (int i = 0; i < graph->n_nodes; i++) {
        if (graph->nodes[i]->op == GGML_OP_MUL_MAT && graph->nodes[i]->ne[1] >= MANY_ROWS) {
            return true;
        }
    }
    return false;
}

/* Make the splits' graphs. */
static void make_graphs(struct hotshoe_schedule * s) {
    const struct hotshoe_arena * arena = s->arena;
    for (int i = 0; i < s->n_splits; i++) {
        struct split * split = &s->splits[i];
        ggml_backend_t unit = arena->units[split->unit];
        split->graph = *s->graph;
        split->graph.size = 0;
        split->graph.n_nodes = split->end - split->first;
        split->graph.n_leafs = 0;
        split->graph.nodes = s->graph->nodes + split->first;
        split->graph.leafs = NULL;
        if (arena->reorders && unit->iface.graph_optimize != NULL) {
            unit->iface.graph_optimize(unit, &split->graph);
        }
        mark(split);
        split->renewed = (arena->capturing >> split->unit & 1) != 0 && has_large_product(&split->graph);
    }
}

/* Find the copies from the host's memory, and the units that a split waits for: a queue orders the use of its own
 * device's memory only. An integrated GPU reads the host's memory while the host goes on, and so does a device that
 * copies from it. */
static void find_awaited(struct hotshoe_schedule * s) {
    const struct hotshoe_arena * arena = s->arena;
    const struct hotshoe_ggml * g = &arena->g;
    uint32_t queued = 0, copying = 0; /* bits of units: what has work, and what reads values on the host */
    for (int i = 0; i < s->n_splits; i++) {
        struct split * split = &s->splits[i];
        const uint32_t own = (uint32_t) 1 << split->unit;
        for (int unit = 0; unit < arena->n; unit++) {
            const bool one_memory = g->supports_buft(arena->units[unit], arena->types[split->unit]) ||
                                    g->supports_buft(arena->units[split->unit], arena->types[unit]);
            if (unit != split->unit && one_memory) {
                split->awaited |= queued & (uint32_t) 1 << unit;
            }
        }
        if (g->buft_is_host(arena->types[split->unit])) {
            split->awaited |= copying & ~own;
        }
        queued = (queued & ~split->awaited) | own;
        copying &= ~split->awaited;
        for (int j = 0; j < split->n_copies; j++) {
            struct copied * c = &s->copies[split->first_copy + j];
            c->on_host = g->buft_is_host(type_of(s, c->source));
            copying |= c->on_host && !is_weight(c->source) ? own : 0;
        }
    }
}

static void note_given(struct hotshoe_schedule * s, struct ggml_tensor * t) {
    if (t->buffer == NULL && (t->view_src != NULL || t->data == NULL)) {
        s->given[s->n_given++] = t;
    }
}

/* Make the graph for the allocator: each copy follows a reader of its source, which must live until then. */
static bool make_whole(struct hotshoe_schedule * s) {
    struct ggml_cgraph * graph = s->graph;
    const size_t n_nodes = (size_t) graph->n_nodes + 2 * (size_t) s->n_copies, n_leafs = (size_t) graph->n_leafs;
    s->whole.size = (int) n_nodes;
    s->whole.nodes = calloc(n_nodes + 1, sizeof *s->whole.nodes);
    s->whole.leafs = graph->leafs;
    s->whole.n_leafs = graph->n_leafs;
    s->node_ids = calloc(n_nodes + 1, sizeof *s->node_ids);
    s->leaf_ids = calloc(n_leafs + 1, sizeof *s->leaf_ids);
    s->given = calloc(n_nodes + n_leafs + 1, sizeof *s->given);
    if (s->whole.nodes == NULL || s->node_ids == NULL || s->leaf_ids == NULL || s->given == NULL) {
        return false;
    }
    const int * ids = s->arena->ids;
    int n = 0;
    for (int i = 0; i < s->n_splits; i++) {
        const struct split * split = &s->splits[i];
        for (int j = 0; j < split->n_copies; j++) {
            struct copied * c = &s->copies[split->first_copy + j];
            s->node_ids[n] = ids[c->source_unit];
            s->whole.nodes[n++] = &c->reader;
            s->node_ids[n] = ids[c->unit];
            s->whole.nodes[n++] = &c->copy;
        }
        for (int j = split->first; j < split->end; j++) {
            s->node_ids[n] = ids[unit_of(s, graph->nodes[j])];
            s->whole.nodes[n++] = graph->nodes[j];
        }
    }
    s->whole.n_nodes = n;
    for (int i = 0; i < n; i++) {
        note_given(s, s->whole.nodes[i]);
    }
    for (int i = 0; i < graph->n_leafs; i++) {
        s->leaf_ids[i] = ids[unit_of(s, graph->leafs[i])];
        note_given(s, graph->leafs[i]);
    }
    return true;
}

/* Find the only unit that reads each input. */
static void place_inputs(struct hotshoe_schedule * s, struct ggml_tensor ** inputs, int n_inputs) {
    for (int i = 0; i < n_inputs; i++) {
        set_place(s, inputs[i], -1);
    }
    for (int i = 0; i < s->graph->n_nodes; i++) {
        const struct ggml_tensor * node = s->graph->nodes[i];
        const int unit = is_view(node) ? -1 : find_place(s, node)->unit;
        for (int j = 0; j < GGML_MAX_SRC && unit >= 0; j++) {
            const struct ggml_tensor * source = node->src[j];
            source = source != NULL && source->view_src != NULL ? source->view_src : source;
            if (source != NULL && (source->flags & GGML_TENSOR_FLAG_INPUT) != 0) {
                struct place * place = find_place(s, source);
                place->shared = place->shared || (place->unit >= 0 && place->unit != unit);
                place->unit = unit;
            }
        }
    }
    for (int i = 0; i < n_inputs; i++) {
        struct place * place = find_place(s, inputs[i]);
        place->shared = place->shared || place->unit < 0;
        place->unit = place->shared ? s->arena->n - 1 : place->unit;
    }
}

struct hotshoe_schedule * hotshoe_schedule_new(struct hotshoe_arena * arena, struct ggml_cgraph * graph,
                                               const int8_t * node_units, struct ggml_tensor ** inputs, int n_inputs) {
    struct hotshoe_schedule * s = calloc(1, sizeof *s);
    if (s == NULL) {
        return NULL;
    }
    s->arena = arena;
    s->graph = graph;
    s->n_places = 64;
    while (s->n_places < 2 * ((size_t) graph->n_nodes + (size_t) n_inputs)) {
        s->n_places *= 2;
    }
    s->places = calloc(s->n_places, sizeof *s->places);
    if (s->places == NULL) {
        hotshoe_schedule_free(s);
        return NULL;
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        if (!is_view(graph->nodes[i])) {
            set_place(s, graph->nodes[i], node_units == NULL ? 0 : node_units[i]);
        }
    }
    place_inputs(s, inputs, n_inputs);
    bool done = divide(s);
    if (done) {
        make_graphs(s);
        find_awaited(s);
        done = make_whole(s);
    }
    if (!done) {
        hotshoe_schedule_free(s);
        return NULL;
    }
    return s;
}

void hotshoe_schedule_free(struct hotshoe_schedule * s) {
    if (s != NULL) {
        free(s->places);
        free(s->splits);
        free(s->copies);
        free(s->whole.nodes);
        free(s->node_ids);
        free(s->leaf_ids);
        free(s->given);
        free(s);
    }
}

int hotshoe_schedule_n_splits(const struct hotshoe_schedule * s) { return s->n_splits; }

int hotshoe_schedule_n_copies(const struct hotshoe_schedule * s) { return s->n_copies; }

int hotshoe_schedule_unit(const struct hotshoe_schedule * s, const struct ggml_tensor * tensor) {
    const struct place * place = find_place(s, tensor);
    return place->tensor == NULL || place->shared ? -1 : place->unit;
}

void hotshoe_add_nodes(const struct hotshoe_ggml * ggml, struct ggml_cgraph * graph, struct ggml_tensor ** tensors,
                       int n, const char * names, const int8_t * numbers, int8_t * added_by) {
    int done = graph->n_nodes;
    for (int i = 0; i < n; i++) {
        const size_t length = strlen(names);
        const size_t kept = length < sizeof tensors[i]->name ? length : sizeof tensors[i]->name - 1;
        memcpy(tensors[i]->name, names, kept);
        tensors[i]->name[kept] = 0;
        names += length + 1;
        ggml->build_forward_expand(graph, tensors[i]);
        for (; done < graph->n_nodes; done++) {
            added_by[done] = numbers[i];
        }
    }
}

static bool looks_like(const struct ggml_tensor * a, const struct ggml_tensor * b) {
    return a->op == b->op && a->type == b->type && memcmp(a->ne, b->ne, sizeof a->ne) == 0 &&
           memcmp(a->nb, b->nb, sizeof a->nb) == 0 && memcmp(a->op_params, b->op_params, sizeof a->op_params) == 0 &&
           a->flags == b->flags && (a->view_src == NULL) == (b->view_src == NULL) && a->view_offs == b->view_offs &&
           (a->data == NULL) == (b->data == NULL) && memory_of(a) == memory_of(b);
}

static bool is_like(const struct ggml_tensor * a, const struct ggml_tensor * b) {
    bool same = looks_like(a, b);
    for (int j = 0; j < GGML_MAX_SRC && same; j++) {
        const struct ggml_tensor *x = a->src[j], *y = b->src[j];
        same = x == y || (x != NULL && y != NULL && looks_like(x, y));
    }
    return same;
}

bool hotshoe_alike(const struct ggml_cgraph * graph, int32_t * first) {
    enum { N = 1024 };
    int32_t * next = malloc(((size_t) graph->n_nodes + 1) * sizeof *next); /* the nodes that were first, in N lists */
    if (next == NULL) {
        return false;
    }
    int32_t heads[N];
    memset(heads, -1, sizeof heads);
    for (int32_t i = 0; i < graph->n_nodes; i++) {
        const struct ggml_tensor * node = graph->nodes[i];
        const uint64_t sizes = (uint64_t) node->ne[0] * 31 + (uint64_t) node->ne[1] * 17 + (uint64_t) node->ne[2];
        int32_t * head = &heads[((sizes * 131 + (uint64_t) node->op) * 0x9E3779B97F4A7C15u >> 32) % N];
        first[i] = *head;
        while (first[i] >= 0 && !is_like(graph->nodes[first[i]], node)) {
            first[i] = next[first[i]];
        }
        if (first[i] < 0) {
            first[i] = i;
            next[i] = *head;
            *head = i;
        }
    }
    free(next);
    return true;
}

/* Take its memory from the graph: the allocator gives memory only to tensors without any. */
static void take_memory(struct hotshoe_schedule * s) {
    s->generation = 0;
    for (int i = 0; i < s->n_given; i++) {
        struct ggml_tensor * t = s->given[i];
        t->buffer = NULL;
        t->data = t->view_src != NULL ? t->data : NULL;
        t->extra = NULL;
    }
}

/* What the graph needs of each type of memory. It loses its memory. */
static void measure(struct hotshoe_schedule * s, size_t * by_id) {
    const struct hotshoe_arena * arena = s->arena;
    ggml_gallocr_t apart = arena->g.gallocr_new_n((ggml_backend_buffer_type_t *) arena->types_by_id, arena->n_ids);
    take_memory(s);
    arena->g.gallocr_reserve_n_size(apart, &s->whole, s->node_ids, s->leaf_ids, by_id);
    arena->g.gallocr_free(apart);
}

/* By this number a device knows a graph again that has not changed. */
static void renew(struct split * split) {
    split->graph.uid = atomic_fetch_add_explicit(&next_uid, 1, memory_order_relaxed);
}

bool hotshoe_schedule_allocate(struct hotshoe_schedule * s) {
    struct hotshoe_arena * arena = s->arena;
    const struct hotshoe_ggml * g = &arena->g;
    if (s->generation == arena->generation) {
        return true;
    }
    size_t before[HOTSHOE_MAX_UNITS];
    for (int i = 0; i < arena->n_ids; i++) {
        before[i] = g->gallocr_get_buffer_size(arena->allocator, i);
    }
    take_memory(s);
    /* Reserving reports a lack of memory. Allocating without it uses the last graph's plan if that is large enough. */
    const bool done = g->gallocr_reserve_n(arena->allocator, &s->whole, s->node_ids, s->leaf_ids) &&
                      g->gallocr_alloc_graph(arena->allocator, &s->whole);
    bool moved = !done;
    for (int i = 0; i < arena->n_ids; i++) {
        const size_t size = g->gallocr_get_buffer_size(arena->allocator, i);
        moved = moved || size != before[i];
        /* Of several pieces some may have changed without a change of their sum. */
        arena->keeps = arena->keeps && size <= g->buft_get_max_size(arena->types_by_id[i]);
    }
    for (int i = 0; i < s->n_given && done; i++) {
        /* A library that frees what it knows of tensors when their buffer is used again. */
        arena->keeps = arena->keeps && (s->given[i]->buffer == NULL || s->given[i]->buffer->iface.reset == NULL);
    }
    arena->generation += moved || !arena->keeps;
    if (!done) {
        take_memory(s);
        return false;
    }
    s->generation = arena->generation;
    for (int i = 0; i < s->n_splits; i++) {
        renew(&s->splits[i]);
    }
    return true;
}

bool hotshoe_schedule_grows(struct hotshoe_schedule * s) {
    const struct hotshoe_arena * arena = s->arena;
    size_t by_id[HOTSHOE_MAX_UNITS] = {0};
    if (s->generation == arena->generation) {
        return false;
    }
    measure(s, by_id);
    bool grows = !arena->keeps;
    for (int i = 0; i < arena->n_ids; i++) {
        grows = grows || by_id[i] > arena->g.gallocr_get_buffer_size(arena->allocator, i);
    }
    return grows;
}

void hotshoe_schedule_sizes(struct hotshoe_schedule * s, size_t * sizes) {
    const struct hotshoe_arena * arena = s->arena;
    size_t by_id[HOTSHOE_MAX_UNITS] = {0};
    measure(s, by_id);
    for (int i = 0; i < arena->n; i++) {
        sizes[i] = is_first_of_its_type(arena, i) ? by_id[arena->ids[i]] : 0;
    }
}

static void copy_value(const struct hotshoe_arena * arena, struct copied * c) {
    const struct hotshoe_ggml * g = &arena->g;
    ggml_backend_t from = arena->units[c->source_unit], to = arena->units[c->unit];
    if (c->on_host) { /* in the order of what is queued there; find_awaited keeps the source until it was read */
        g->synchronize(from);
        g->tensor_set_async(to, &c->copy, c->source->data, 0, g->nbytes(c->source));
        return;
    }
    g->synchronize(to); /* it may still use the memory of the copy for something else */
    if (to->iface.cpy_tensor_async == NULL || !to->iface.cpy_tensor_async(from, to, c->source, &c->copy)) {
        g->synchronize(from);
        g->tensor_copy(c->source, &c->copy);
    }
}

enum ggml_status hotshoe_schedule_compute(struct hotshoe_schedule * s) {
    const struct hotshoe_arena * arena = s->arena;
    for (int i = 0; i < s->n_splits; i++) {
        struct split * split = &s->splits[i];
        for (int unit = 0; unit < arena->n; unit++) {
            if ((split->awaited >> unit & 1) != 0) {
                arena->g.synchronize(arena->units[unit]);
            }
        }
        for (int j = 0; j < split->n_copies; j++) {
            copy_value(arena, &s->copies[split->first_copy + j]);
        }
        if (split->renewed) {
            mark(split);
            renew(split);
        }
        const enum ggml_status status = arena->g.graph_compute_async(arena->units[split->unit], &split->graph);
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
    }
    return GGML_STATUS_SUCCESS;
}
