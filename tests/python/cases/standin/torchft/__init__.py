"""The two classes of torchft that zenps.torch.torchft needs, for hosts without torchft: its process group is an interface."""
