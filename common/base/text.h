/* Texts made of pieces; and text that a peer wrote and that ends up in logs and terminals: printable UTF-8, one line.
 */
#ifndef ZPS_BASE_TEXT_H
#define ZPS_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/err.h"

/* The number of leading bytes that are well-formed UTF-8 (no surrogates, no overlong forms) without control characters:
 * `len` when all are. */
size_t zps_text_printable(const char *text, size_t len);
/* Replaces every byte that is not part of such text by '?': texts of the system, and texts cut in the middle of a
 * character, may be sent. */
void zps_text_sanitize(char *text, size_t len);

/* Checks that `name` is 1 to `max_bytes` of such text. ZPS_ERR_INVALID gives the name, its bytes and the limit; it
 * begins with `what`, "tensor" for example. */
zps_err_t zps_text_check_name(const char *what, const char *name, size_t max_bytes,
                              struct zps_error *error) ZPS_MUSTCHECK;

/* Adds a piece to a text, of which `size` is all the room; the part that does not fit is cut off. */
void zps_text_add(char *text, size_t size, const char *fmt, ...) ZPS_PRINTF(3, 4);

/* Copies the next word of a list with commas, without blanks around it, and cut at `size`. False: there is none. */
bool zps_text_word(const char **list, char *word, size_t size);

#endif
