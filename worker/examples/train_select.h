/* Selection of a gradient's greatest values on the way to the sum, and rows on the way back. */
#ifndef ZPS_EXAMPLES_TRAIN_SELECT_H
#define ZPS_EXAMPLES_TRAIN_SELECT_H

#include "common/plan/scheme_options.h"
#include "worker/examples/train.h"

/* Whether the scheme of the text keeps only some rows. */
bool train_select_lossy(const char *scheme);
/* The scheme's text for the tensor, with the density and with `contributed` where the scheme selects. False: the
 * options contradict each other. `text` has ZPS_SCHEME_TEXT_MAX + 1 characters. */
bool train_select_scheme(const struct train_sync *sync, char *text, struct zps_error *error);
/* For a tensor of rows x width values; false, with zenps_last_error() or errno's reason, where it cannot be. */
bool train_select_open(struct train_select *select, const struct train_sync *sync, uint64_t rows, uint32_t width);
void train_select_close(struct train_select *select);
/* The greatest values of the residual and `factor` times the gradient, for the sum; they are borrowed until the next
 * call. */
bool train_select_in(struct train_select *select, const struct grad *grad, float factor, zenps_grad_t *in);
/* Commits select->values, the result of `request`, and hands them out as rows. */
bool train_select_out(struct train_select *select, const zenps_request_t *request, uint32_t width, zenps_grad_t *sum);

#endif
