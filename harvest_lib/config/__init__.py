"""Configuration of a harvester: from Python, the environment, or goharvest's YAML. Checked whole, secrets hidden.

    HarvestConfig(leader_group_id="billing", data_source="host=db dbname=shop")
    HarvestConfig()                      from HARVEST_* variables
    load("reaper.yaml").harvest          from a file, which environment variables override

A Python argument overrides an environment variable, which overrides the file, which overrides the default.
"""

from harvest_lib.config.columns import ColumnMapping, Constant
from harvest_lib.config.data_source import DataSource
from harvest_lib.config.durations import format_duration, parse_duration
from harvest_lib.config.kafka_settings import KafkaSettings
from harvest_lib.config.limits import Limits
from harvest_lib.config.model import HarvestConfig
from harvest_lib.config.yaml_file import ReaperFile, load

__all__ = [
    "ColumnMapping",
    "Constant",
    "DataSource",
    "HarvestConfig",
    "KafkaSettings",
    "Limits",
    "ReaperFile",
    "format_duration",
    "load",
    "parse_duration",
]
