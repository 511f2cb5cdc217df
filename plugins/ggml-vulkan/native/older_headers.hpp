// What ggml's Vulkan backend takes from headers newer than some distributions have (Debian 12: 1.3.239). It is all for
// a validation layer, which a release build does not use. ggml itself says what it lacks besides.
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
