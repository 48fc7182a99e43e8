/* The files of the API's tensors: tensor_ask.c what is asked for, tensor.c made and opened, tensor_auto.c auto's
 * variants. */
#ifndef ZPS_WORKER_API_TENSOR_IMPL_H
#define ZPS_WORKER_API_TENSOR_IMPL_H

#include "worker/api/tensor.h"
#include "worker/choice/scheme_ask.h"

#define ZPS_DTYPES_TEXT "ZENPS_F32, ZENPS_F64, ZENPS_BF16, ZENPS_F16"

struct zps_tensor_ask {
  struct zps_tensor_spec spec;
  struct zps_scheme_ask scheme;
  struct zenps_group *group; /* NULL: of all ranks */
};

/* `given` NULL: defaults. */
zps_err_t zps_tensor_ask_make(struct zenps_job *job, const char *name, uint64_t rows, uint32_t width,
                              enum zps_dtype dtype, const zenps_tensor_options_t *given, struct zps_tensor_ask *out,
                              struct zps_error *error) ZPS_MUSTCHECK;
/* The same question again has the same answer; another one is an error, as it would be between ranks. */
zps_err_t zps_tensor_ask_compare(const struct zenps_tensor *tensor, const struct zps_tensor_ask *asked,
                                 struct zps_error *error) ZPS_MUSTCHECK;

/* A tensor on its way to the coordinator. */
struct zps_registering {
  struct zps_tensor_spec wire; /* what travels */
  struct zps_client_order *call;
};

/* zenps_tensor_open(): what can be told to be wrong at once. */
zps_err_t zps_tensor_ask_check(const char *name, zenps_dtype_t dtype, struct zps_error *error) ZPS_MUSTCHECK;
/* The following under the job's `open`. Starts to register a tensor; one of the next two follows. */
zps_err_t zps_worker_tensor_register(struct zenps_job *job, const struct zps_tensor_ask *asked,
                                     struct zps_registering *registering, struct zps_error *error) ZPS_MUSTCHECK;
/* Opens it, with what belongs to it, and puts it among the job's. `given`: the caller's options. */
zps_err_t zps_worker_tensor_open_registered(struct zenps_job *job, const struct zps_tensor_ask *asked,
                                            const zenps_tensor_options_t *given, struct zps_registering *registering,
                                            struct zenps_tensor **tensor_p, struct zps_error *error) ZPS_MUSTCHECK;
/* Waits for the answer, and leaves it. */
void zps_worker_tensor_unregistered(struct zenps_job *job, struct zps_registering *registering);
/* Registers the tensor, and makes what its rounds need; add() puts it among the job's. */
zps_err_t zps_worker_tensor_create(struct zenps_job *job, const struct zps_tensor_ask *asked,
                                   struct zenps_tensor **tensor_p, struct zps_error *error) ZPS_MUSTCHECK;
void zps_worker_tensor_add(struct zenps_job *job, struct zenps_tensor *tensor);
/* Names are their group's. NULL: it is not open. */
struct zenps_tensor *zps_worker_tensor_find(struct zenps_job *job, const struct zenps_group *group, const char *name);
/* Makes it the trainer's tensor of several variants, which are opened. */
zps_err_t zps_worker_tensor_automatic(struct zenps_job *job, struct zenps_tensor *tensor,
                                      const struct zps_tensor_ask *asked, const zenps_tensor_options_t *given,
                                      struct zps_error *error) ZPS_MUSTCHECK;
/* Under the job's lock: it is about to be closed, and nothing more is to be agreed on. For any tensor. */
void zps_worker_agree_cancel(const struct zenps_tensor *tensor);

/* job_device.c. A gradient or result is on the device: copies there, once, the table that rows of the tensor are looked
 * up in, if it has one. Waits until it is there. */
struct zps_worker_device;
zps_err_t zps_worker_device_table(struct zenps_tensor *tensor, const struct zps_worker_device *device,
                                  struct zps_error *error) ZPS_MUSTCHECK;

#endif
