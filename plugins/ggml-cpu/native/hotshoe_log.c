/* Discards ggml's log messages. */
#include "hotshoe_kernels.h"

void hotshoe_log_discard(enum ggml_log_level level, const char * text, void * user_data) {
    (void) level;
    (void) text;
    (void) user_data;
}
