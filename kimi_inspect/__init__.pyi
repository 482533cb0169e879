# What the package offers, for type checkers: at run time each name is imported when it is first used.

from kimi_inspect.bodies import read_ranges as read_ranges
from kimi_inspect.components import Component as Component
from kimi_inspect.components import Group as Group
from kimi_inspect.errors import AmbiguousCheckpointError as AmbiguousCheckpointError
from kimi_inspect.errors import AuthenticationError as AuthenticationError
from kimi_inspect.errors import CheckpointError as CheckpointError
from kimi_inspect.errors import FormatError as FormatError
from kimi_inspect.errors import GatedRepositoryError as GatedRepositoryError
from kimi_inspect.errors import HeaderTooLargeError as HeaderTooLargeError
from kimi_inspect.errors import InvalidSourceError as InvalidSourceError
from kimi_inspect.errors import KimiInspectError as KimiInspectError
from kimi_inspect.errors import MalformedHeaderError as MalformedHeaderError
from kimi_inspect.errors import NoCheckpointError as NoCheckpointError
from kimi_inspect.errors import NotWeightsError as NotWeightsError
from kimi_inspect.errors import OfflineError as OfflineError
from kimi_inspect.errors import RangeNotSupportedError as RangeNotSupportedError
from kimi_inspect.errors import RateLimitedError as RateLimitedError
from kimi_inspect.errors import RepositoryNotFoundError as RepositoryNotFoundError
from kimi_inspect.errors import RevisionNotFoundError as RevisionNotFoundError
from kimi_inspect.errors import SourceError as SourceError
from kimi_inspect.errors import SourceFileNotFoundError as SourceFileNotFoundError
from kimi_inspect.errors import TransportError as TransportError
from kimi_inspect.errors import TruncatedError as TruncatedError
from kimi_inspect.errors import UnsafePathError as UnsafePathError
from kimi_inspect.errors import UnsupportedVersionError as UnsupportedVersionError
from kimi_inspect.expecting import expected_tensors as expected_tensors
from kimi_inspect.inventory import Inventory as Inventory
from kimi_inspect.opening import Checkpoint as Checkpoint
from kimi_inspect.opening import open_checkpoint as open_checkpoint
from kimi_inspect.report import ComponentRow as ComponentRow
from kimi_inspect.report import EncodingRow as EncodingRow
from kimi_inspect.report import ExpertCensus as ExpertCensus
from kimi_inspect.report import LayerRow as LayerRow
from kimi_inspect.report import Report as Report
from kimi_inspect.sources import ByteSource as ByteSource
from kimi_inspect.summarizing import inspect as inspect
from kimi_inspect.summarizing import summarize as summarize
from kimi_inspect.table import TensorTable as TensorTable
from kimi_inspect.values import ByteRange as ByteRange
from kimi_inspect.values import Companion as Companion
from kimi_inspect.values import Finding as Finding
from kimi_inspect.values import LongArray as LongArray
from kimi_inspect.values import Progress as Progress
from kimi_inspect.values import Role as Role
from kimi_inspect.values import Severity as Severity
from kimi_inspect.values import Shard as Shard
from kimi_inspect.values import TensorInfo as TensorInfo
from kimi_inspect.values import Traffic as Traffic

__all__: list[str]
__version__: str
