class ProcessGroup:
    def __init__(self, *_):
        pass
