// ggml's Vulkan backend, with failures as errors, and with software devices reported as such.
//
// In ggml, a device that is lost or out of memory throws through C, which ends the process. Here every function that
// ggml-base or a caller may enter catches the exception, and hotshoe_backend_failure tells what happened (see
// guarded.hpp).

#include "ggml-impl.h"

#include "guarded.hpp"

#include <map>
#include <mutex>
#include <ostream>
#include <sstream>
#include <string>

// Replaces std::cerr: each line goes to ggml's log.
static std::ostream & messages() {
    struct lines : std::stringbuf {
        int sync() override {
            GGML_LOG_WARN("%s", str().c_str());
            str("");
            return 0;
        }
    };
    static thread_local lines buffer;
    static thread_local std::ostream stream(&buffer);
    return stream;
}

#include "ggml-vulkan-checked.cpp" // ggml-vulkan.cpp, with messages() and older_headers.hpp: see CMakeLists.txt

// What happened to a device, by ggml's name for it.
struct device_state {
    uint64_t failures = 0;
    std::string why;   // reason of the last failure
    bool lost = false; // it must be opened again
};
static std::mutex states_mutex;
static std::map<std::string, device_state> states;

static void note_failure(ggml_backend_dev_t device, const char * why) {
    std::lock_guard<std::mutex> lock(states_mutex);
    device_state & state = states[ggml_backend_vk_device_get_name(device)];
    state.failures++;
    state.why = why;
    state.lost = true;
}
static void note_failure(ggml_backend_t backend, const char * why) { note_failure(backend->device, why); }
static void note_failure(ggml_backend_buffer_type_t type, const char * why) { note_failure(type->device, why); }
static void note_failure(ggml_backend_buffer_t buffer, const char * why) { note_failure(buffer->buft->device, why); }

// Sets *failures to the number of times that this device failed. Returns why it failed the last time, or NULL if it
// never did. device "": why there is no device. The text is valid until the thread's next call.
static const char * hotshoe_backend_failure(const char * device, uint64_t * failures) {
    static thread_local std::string why;
    std::lock_guard<std::mutex> lock(states_mutex);
    const device_state & state = states[device];
    *failures = state.failures;
    why = state.why;
    return state.failures == 0 ? nullptr : why.c_str();
}

static bool is_software(ggml_backend_dev_t device) {
    const auto * context = (const ggml_backend_vk_device_context *) device->context;
    return ggml_backend_vk_get_device_type(int(context->device)) == vk::PhysicalDeviceType::eCpu;
}

// ggml lists a device that is neither a discrete nor an integrated GPU only if GGML_VK_VISIBLE_DEVICES names it. This
// adds the devices that compute on the CPU after all others, unless that variable is set.
static void add_software_devices() {
    if (getenv("GGML_VK_VISIBLE_DEVICES") != nullptr) {
        return;
    }
    const auto devices = vk_instance.instance.enumeratePhysicalDevices();
    for (size_t i = 0; i < devices.size() && vk_instance.device_indices.size() < GGML_VK_MAX_DEVICES; ++i) {
        if (devices[i].getProperties().deviceType == vk::PhysicalDeviceType::eCpu &&
            ggml_vk_device_is_supported(devices[i])) {
            vk_instance.device_indices.push_back(i);
            vk_instance.device_supports_membudget.push_back(false); // it has the machine's memory
        }
    }
}

// When Mesa's software driver (22.3) binds a descriptor set, it uses all buffers of the set, even those that the shader
// does not use. ggml writes only those that the shader uses: the others may belong to a graph that was freed in the
// meantime.
static PFN_vkUpdateDescriptorSets update_descriptor_sets;

static bool is_llvmpipe(VkDevice device) {
    for (const vk_device & known : vk_instance.devices) {
        if (known != nullptr && VkDevice(known->device) == device) {
            return known->driver_id == vk::DriverId::eMesaLlvmpipe;
        }
    }
    return false;
}

static VKAPI_ATTR void VKAPI_CALL update_all_bindings(VkDevice device, uint32_t n, const VkWriteDescriptorSet * writes,
                                                      uint32_t n_copies, const VkCopyDescriptorSet * copies) {
    update_descriptor_sets(device, n, writes, n_copies, copies);
    if (!is_llvmpipe(device)) {
        return;
    }
    for (uint32_t i = 0; i < n; ++i) {
        for (uint32_t binding = writes[i].dstBinding + writes[i].descriptorCount; binding < MAX_PARAMETER_COUNT;
             ++binding) {
            VkWriteDescriptorSet write = writes[i];
            write.dstBinding = binding;
            write.descriptorCount = 1; // its first buffer once more
            update_descriptor_sets(device, 1, &write, 0, nullptr);
        }
    }
}

static enum ggml_backend_dev_type device_type(ggml_backend_dev_t device) {
    return is_software(device) ? GGML_BACKEND_DEVICE_TYPE_ACCEL
                               : ggml_backend_vk_device_get_type(device); // never the default
}

// ggml's shaders that copy blocks read rows from the wrong address if the rows do not start at the device's alignment.
static bool supports_op(ggml_backend_dev_t device, const ggml_tensor * op) {
    const bool copies = op->op == GGML_OP_CPY || op->op == GGML_OP_DUP || op->op == GGML_OP_CONT;
    if (copies && ggml_is_quantized(op->src[0]->type)) {
        const size_t alignment =
            ggml_backend_vk_buffer_type_get_alignment(ggml_backend_vk_device_get_buffer_type(device));
        if (op->src[0]->view_offs % alignment != 0) {
            return false;
        }
    }
    return ggml_backend_vk_device_supports_op(device, op);
}

static void device_props(ggml_backend_dev_t device, ggml_backend_dev_props * props) {
    ggml_backend_vk_device_get_props(device, props);
    props->type = device_type(device);
}

// Opens a lost device again. What was in its memory stays lost.
static ggml_backend_t init_backend(ggml_backend_dev_t device, const char * params) {
    const size_t index = ((ggml_backend_vk_device_context *) device->context)->device;
    std::unique_lock<std::mutex> lock(states_mutex);
    device_state & state = states[ggml_backend_vk_device_get_name(device)];
    const bool was_lost = state.lost;
    state.lost = false;
    lock.unlock();
    const vk_device before = vk_instance.devices[index];
    try {
        if (was_lost) {
            vk_instance.devices[index] = nullptr;
        }
        return ggml_backend_vk_device_init(device, params);
    } catch (...) {
        vk_instance.devices[index] = before; // not one that is half open
        throw;
    }
}

// Drops what was recorded of a graph that did not get its memory, so that another graph can run.
static void abandon_graph(ggml_backend_vk_context * context) {
    context->device->device.waitIdle();
    if (context->almost_ready_fence_pending) {
        context->device->device.resetFences({context->almost_ready_fence});
        context->almost_ready_fence_pending = false;
    }
    context->submit_pending = false;
    context->compute_ctx.reset();
    context->transfer_ctx.reset();
    ggml_vk_graph_cleanup(context);
    const auto kept = [](const vk_buffer & buffer) { return buffer == nullptr ? size_t(0) : buffer->size; };
    context->prealloc_size_x = kept(context->prealloc_x);
    context->prealloc_size_y = kept(context->prealloc_y);
    context->prealloc_size_split_k = kept(context->prealloc_split_k);
    context->num_additional_fused_ops = 0;
    context->fused_ops_write_mask = 0;
}

static enum ggml_status graph_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    auto * context = (ggml_backend_vk_context *) backend->context;
    try {
        return ggml_backend_vk_graph_compute(backend, graph);
    } catch (const vk::SystemError & error) { // ggml throws its base class again: only the code tells them apart
        if (error.code() != vk::make_error_code(vk::Result::eErrorOutOfDeviceMemory) &&
            error.code() != vk::make_error_code(vk::Result::eErrorOutOfHostMemory)) {
            throw;
        }
        abandon_graph(context);
        return GGML_STATUS_ALLOC_FAILED;
    }
}

// ggml moves nodes past others that they do not read. A node that writes in place must stay behind the nodes that read
// the memory before; no edge of the graph says so. Such graphs keep their order.
static void graph_optimize(ggml_backend_t backend, ggml_cgraph * graph) {
    const auto root = [](const ggml_tensor * t) { return t->view_src != nullptr ? t->view_src : t; };
    for (int i = 0; i < graph->n_nodes; ++i) {
        const ggml_tensor * writer = graph->nodes[i];
        if (writer->view_src == nullptr || ggml_vk_is_empty(graph->nodes[i])) {
            continue;
        }
        for (int j = 0; j < i; ++j) {
            const ggml_tensor * reader = graph->nodes[j];
            if (root(reader) == writer->view_src) {
                continue; // a view, or a write before this one: ggml keeps their order
            }
            for (const ggml_tensor * source : reader->src) {
                if (source != nullptr && root(source) == writer->view_src) {
                    return;
                }
            }
        }
    }
    ggml_vk_graph_optimize(backend, graph);
}

static void free_backend(ggml_backend_t backend) {
    auto * context = (ggml_backend_vk_context *) backend->context;
    try {
        ggml_vk_cleanup(context);
    } catch (const std::exception &) {
        return; // nothing of a lost device can be freed: a second attempt would only fail elsewhere
    }
    delete context;
    delete backend;
}

static void * get_proc_address(ggml_backend_reg_t, const char * name) {
    return std::string(name) == "hotshoe_backend_failure" ? (void *) hotshoe_backend_failure : nullptr;
}

static void guard_device(ggml_backend_dev_t device) {
    auto & i = device->iface;
    i.get_memory = guarded<ggml_backend_vk_device_get_memory>::call;
    i.get_type = guarded<device_type>::call;
    i.get_props = guarded<device_props>::call;
    i.init_backend = guarded<init_backend>::call;
    i.get_buffer_type = guarded<ggml_backend_vk_device_get_buffer_type>::call;
    i.get_host_buffer_type = guarded<ggml_backend_vk_device_get_host_buffer_type>::call;
    i.buffer_from_host_ptr = guarded<ggml_backend_vk_device_buffer_from_host_ptr>::call;
    i.supports_op = guarded<supports_op>::call;
    i.event_new = guarded<ggml_backend_vk_device_event_new>::call;
    i.event_free = guarded<ggml_backend_vk_device_event_free>::call;
    i.event_synchronize = guarded<ggml_backend_vk_device_event_synchronize>::call;
}

static void guard_interfaces() {
    auto & buffer = ggml_backend_vk_buffer_interface;
    buffer.free_buffer = guarded<ggml_backend_vk_buffer_free_buffer>::call;
    buffer.init_tensor = guarded<ggml_backend_vk_buffer_init_tensor>::call;
    buffer.memset_tensor = guarded<ggml_backend_vk_buffer_memset_tensor>::call;
    buffer.set_tensor = guarded<ggml_backend_vk_buffer_set_tensor>::call;
    buffer.get_tensor = guarded<ggml_backend_vk_buffer_get_tensor>::call;
    buffer.set_tensor_2d = guarded<ggml_backend_vk_buffer_set_tensor_2d>::call;
    buffer.get_tensor_2d = guarded<ggml_backend_vk_buffer_get_tensor_2d>::call;
    buffer.cpy_tensor = guarded<ggml_backend_vk_buffer_cpy_tensor>::call;
    buffer.clear = guarded<ggml_backend_vk_buffer_clear>::call;
    ggml_backend_vk_buffer_type_interface.alloc_buffer = guarded<ggml_backend_vk_buffer_type_alloc_buffer>::call;
    auto & i = ggml_backend_vk_interface;
    i.free = free_backend;
    i.set_tensor_async = guarded<ggml_backend_vk_set_tensor_async>::call;
    i.get_tensor_async = guarded<ggml_backend_vk_get_tensor_async>::call;
    i.set_tensor_2d_async = guarded<ggml_backend_vk_set_tensor_2d_async>::call;
    i.get_tensor_2d_async = guarded<ggml_backend_vk_get_tensor_2d_async>::call;
    i.cpy_tensor_async = guarded<ggml_backend_vk_cpy_tensor_async>::call;
    i.synchronize = guarded<ggml_backend_vk_synchronize>::call;
    i.graph_compute = guarded<graph_compute>::call;
    i.graph_optimize = guarded<graph_optimize>::call;
    i.event_record = guarded<ggml_backend_vk_event_record>::call;
    i.event_wait = guarded<ggml_backend_vk_event_wait>::call;
}

// If the driver is missing or broken, the registry has no device, and hotshoe_backend_failure tells why.
extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void) {
    static const ggml_backend_reg_i none = {
        /* .get_name         = */ ggml_backend_vk_reg_get_name,
        /* .get_device_count = */ [](ggml_backend_reg_t) { return size_t(0); },
        /* .get_device       = */ [](ggml_backend_reg_t, size_t) -> ggml_backend_dev_t { return nullptr; },
        /* .get_proc_address = */ get_proc_address,
    };
    static ggml_backend_reg without = {GGML_BACKEND_API_VERSION, none, nullptr};
    guard_interfaces();
    try {
        ggml_vk_instance_init();
        add_software_devices();
        auto & update = ggml_vk_default_dispatcher().vkUpdateDescriptorSets;
        if (update != update_all_bindings) {
            update_descriptor_sets = update;
            update = update_all_bindings;
        }
        ggml_backend_reg_t reg = ggml_backend_vk_reg();
        reg->iface.get_proc_address = get_proc_address;
        for (size_t i = 0; i < vk_instance.device_indices.size(); ++i) {
            guard_device(ggml_backend_vk_reg_get_device(reg, i));
        }
        return reg;
    } catch (const std::exception & error) {
        states[""] = {1, error.what(), true};
        return &without;
    }
}
