/*
 * Faults of a caller of libfabric, planted into common/net/ofi where a test compiles these files with -include of this
 * header. ZPS_PLANT names the fault of a run; without it the calls are as they were.
 */
#ifndef ZPS_TESTS_DOUBLE_PLANT_H
#define ZPS_TESTS_DOUBLE_PLANT_H

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

int planted_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                    const struct fi_info *hints, struct fi_info **info);
int planted_mr_reg(struct fid_domain *domain, const void *buf, size_t len, uint64_t access, uint64_t offset,
                   uint64_t key, uint64_t flags, struct fid_mr **mr, void *context);
void *planted_mr_desc(struct fid_mr *mr);
int planted_mr_enable(struct fid_mr *mr);
int planted_close(struct fid *fid);
ssize_t planted_tsend(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t to, uint64_t tag,
                      void *context);

#define fi_getinfo planted_getinfo
#define fi_mr_reg planted_mr_reg
#define fi_mr_desc planted_mr_desc
#define fi_mr_enable planted_mr_enable
#define fi_close planted_close
#define fi_tsend planted_tsend

#endif
