/* What the coordinator says of a tensor's schemes, `tensor.plan`, and that it says nothing. */
#include "worker/api/job.h"
#include "worker/choice/auto.h"

void zps_worker_plan(struct zenps_job *job, const struct zps_tensor_plan *plan) {
  pthread_mutex_lock(&job->lock);
  for (struct zenps_tensor *tensor = job->tensors; tensor; tensor = tensor->next) {
    if (tensor->is_automatic && tensor->core.id == plan->tensor)
      zps_automatic_propose(tensor->automatic, plan->runs, plan->n, plan->whole);
  }
  pthread_mutex_unlock(&job->lock);
}

void zps_worker_plans_try_again(struct zenps_job *job) {
  pthread_mutex_lock(&job->lock);
  for (struct zenps_tensor *tensor = job->tensors; tensor; tensor = tensor->next)
    if (tensor->is_automatic) zps_automatic_try_again(tensor->automatic);
  pthread_mutex_unlock(&job->lock);
}

void zps_worker_plans_alone(struct zenps_job *job) {
  pthread_mutex_lock(&job->lock);
  for (struct zenps_tensor *tensor = job->tensors; tensor; tensor = tensor->next)
    if (tensor->is_automatic) zps_automatic_alone(tensor->automatic);
  pthread_mutex_unlock(&job->lock);
}
