from nemo_rl.data_plane.factory import build_data_plane_client
from nemo_rl.data_plane.interfaces import KVBatchMeta
from nemo_rl.data_plane.observability import MetricsDataPlaneClient

__all__ = ["KVBatchMeta", "MetricsDataPlaneClient", "build_data_plane_client"]
