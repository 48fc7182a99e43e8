class _DummyWork:
    def __init__(self, result):
        self.result_ = result

    def wait(self, timeout=None):
        return True
