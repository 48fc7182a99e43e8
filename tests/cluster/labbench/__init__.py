"""What tests/cluster/bench is made of: the lab, the systems that are measured in it, the grids, the report."""
