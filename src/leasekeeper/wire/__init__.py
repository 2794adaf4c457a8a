"""The wire: the only floor that imports grpc. Endpoints and channels, login, error texts, the watch stream, the engine."""
