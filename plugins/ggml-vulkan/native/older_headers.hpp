// Declares what ggml's Vulkan backend uses and the headers of some distributions lack (Debian 12: 1.3.239). All of it
// is for a validation layer, which a release build does not use. If other declarations are missing, ggml's own build
// says so.
#pragma once

#ifndef VK_EXT_layer_settings
namespace vk {
enum class LayerSettingTypeEXT : int32_t { eBool32 = 0 };

struct LayerSettingEXT {
    const char * pLayerName;
    const char * pSettingName;
    LayerSettingTypeEXT type;
    uint32_t valueCount;
    const void * pValues;
};

struct LayerSettingsCreateInfoEXT {
    explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT> & settings)
        : settingCount(uint32_t(settings.size())), pSettings(settings.data()) {}

    VkStructureType sType = VkStructureType(1000496000); // VK_STRUCTURE_TYPE_LAYER_SETTINGS_CREATE_INFO_EXT
    const void * pNext = nullptr;
    uint32_t settingCount;
    const LayerSettingEXT * pSettings;
};
} // namespace vk
#endif
