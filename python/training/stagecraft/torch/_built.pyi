torch_version: str
