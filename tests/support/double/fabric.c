/* Fabric and domain. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/double/double.h"

static int fabric_close(struct fid *fid) {
  struct double_fabric *const fabric = (struct double_fabric *)fid;
  if (fabric->n_children > 0) double_violation("close-order", "a fabric is closed before its domains");
  const int rc = fi_close(&fabric->inner->fid);
  if (rc == 0) free(fabric);
  return rc;
}

static int domain_close(struct fid *fid) {
  struct double_domain *const domain = (struct double_domain *)fid;
  if (domain->n_children > 0)
    double_violation("close-order", "a domain is closed before its endpoints, queues, addresses and registrations");
  const int rc = fi_close(&domain->inner->fid);
  if (rc != 0) return rc;
  domain->fabric->n_children--;
  free(domain);
  return 0;
}

static int domain_open(struct fid_fabric *fid, struct fi_info *info, struct fid_domain **domain_p, void *context) {
  static struct fi_ops fid_ops = {.size = sizeof fid_ops, .close = domain_close};
  static struct fi_ops_domain ops = {
      .size = sizeof ops, .av_open = double_av_open, .cq_open = double_cq_open, .endpoint = double_ep_open};
  static struct fi_ops_mr mr_ops = {.size = sizeof mr_ops, .reg = double_mr_reg};
  struct double_domain *const domain = calloc(1, sizeof *domain);
  struct fi_info *const inner = double_inner_info();
  int rc = -FI_ENOMEM;
  if (domain && inner) {
    domain->fabric = (struct double_fabric *)fid;
    domain->fid = (struct fid_domain){.fid = {FI_CLASS_DOMAIN, context, &fid_ops}, .ops = &ops, .mr = &mr_ops};
    snprintf(domain->card, sizeof domain->card, "%s", info->domain_attr->name);
    rc = fi_domain(domain->fabric->inner, inner, &domain->inner, domain);
  }
  if (inner) fi_freeinfo(inner);
  if (rc != 0) {
    free(domain);
    return rc;
  }
  domain->fabric->n_children++;
  *domain_p = &domain->fid;
  return 0;
}

int double_fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **fabric_p, void *context) {
  static struct fi_ops fid_ops = {.size = sizeof fid_ops, .close = fabric_close};
  static struct fi_ops_fabric ops = {.size = sizeof ops, .domain = domain_open, .trywait = double_trywait};
  (void)attr;
  struct double_fabric *const fabric = calloc(1, sizeof *fabric);
  struct fi_info *const inner = double_inner_info();
  int rc = -FI_ENOMEM;
  if (fabric && inner) rc = fi_fabric(inner->fabric_attr, &fabric->inner, fabric);
  if (inner) fi_freeinfo(inner);
  if (rc != 0) {
    free(fabric);
    return rc;
  }
  fabric->fid = (struct fid_fabric){.fid = {FI_CLASS_FABRIC, context, &fid_ops}, .ops = &ops};
  *fabric_p = &fabric->fid;
  return 0;
}
