"""Names of tests of torch.testing._internal.distributed.distributed_test that torch_c10d.py runs over the backend zenps."""


def _each(pattern: str, **choices: str) -> "list[str]":
    names = [pattern]
    for place, words in choices.items():
        names = [name.replace("{" + place + "}", word) for name in names for word in words.split()]
    return names


_OPS = "sum product min max"
TESTS = [
    *_each("test_reduce_{op}", op=_OPS),
    *_each("test_reduce_{group}_{op}", group="group full_group", op=_OPS),
    "test_reduce_sum_twice",
    *_each("test_all_reduce_{op}", op=_OPS),
    *_each("test_all_reduce_{group}_{op}", group="group full_group", op=_OPS),
    "test_all_reduce_sum_async",
    "test_all_reduce_sum_complex",
    "test_all_reduce_complex_unsupported_ops",
    "test_sparse_all_reduce_sum",
    *_each("test_all_reduce_coalesced_{op}", op=_OPS),
    *_each("test_all_reduce_coalesced_{group}_{op}", group="group full_group", op=_OPS),
    "test_all_reduce_coalesced_max_complex_unsupported",
    *_each("test_{what}{group}", what="broadcast scatter gather all_gather barrier", group="_group _full_group"),
    *_each("test_{what}", what="scatter gather all_gather barrier scatter_checks gather_checks scatter_complex all_gather_complex"),
    "test_broadcast",
    *_each("test_all_gather_coalesced_{what}", what="simple complex group full_group with_empty"),
    *_each("test_{what}", what="all_gather_object_default_pg all_gather_object_subgroup gather_object gather_object_subgroup"),
    "test_scatter_object_list",
    *_each("test_{what}", what="get_rank get_backend Backend_enum_class destroy_group destroy_full_group"),
    *_each("test_{what}", what="get_rank_size_group get_rank_size_full_group"),
    *_each("test_{what}", what="DistributedDataParallelCPU DistributedDataParallelCPU_grad_is_view static_graph_api_cpu"),
    *_each("test_{what}", what="DistributedDataParallel_requires_grad ddp_create_graph ddp_logging_data_cpu get_future grads_same_across_ranks_with_no_sync"),
]
