/* Discards ggml's log messages, all of them or those below a level. */
#include "hotshoe_kernels.h"

#include <stdbool.h>

void hotshoe_log_discard(enum ggml_log_level level, const char * text, void * user_data) {
    (void) level;
    (void) text;
    (void) user_data;
}

void hotshoe_log_filter(enum ggml_log_level level, const char * text, void * user_data) {
    static _Thread_local bool dropped; /* the line that this thread has begun */
    const struct hotshoe_log * log = user_data;
    if (level != GGML_LOG_LEVEL_CONT) {
        dropped = (int) level < *(const volatile int *) &log->least; /* Python may change it at any time */
    }
    if (!dropped) {
        log->callback(level, text, NULL);
    }
}
