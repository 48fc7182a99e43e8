/* The public header's structs begin with their size; here is how they are filled. And the version. */
#include <stddef.h>
#include <string.h>

#include "config.h"
#include "zenps/zenps.h"

const char *zenps_version(void) {
  return PACKAGE_VERSION;
}

void zenps_tensor_options_init(zenps_tensor_options_t *options, size_t struct_size) {
  memset(options, 0, struct_size);
  options->struct_size = struct_size;
}

void zenps_grad_init(zenps_grad_t *grad, size_t struct_size) {
  memset(grad, 0, struct_size);
  grad->struct_size = struct_size;
  if (struct_size >= offsetof(zenps_grad_t, device) + sizeof grad->device) grad->device = -1;
}
