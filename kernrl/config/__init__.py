"""One frozen model a command: the single place where a setting has its name, type, default, group and help.

The command line, the TOML files and the page of the command line are all made from these models. Nothing here imports torch.
"""

from kernrl.config.best_of_n import BestOfNConfig
from kernrl.config.evaluate import EvalConfig
from kernrl.config.optimize import OptimizeConfig
from kernrl.config.reinforce import ReinforceConfig
from kernrl.config.reports import DoctorConfig, QuickstartConfig, ReportConfig, SamplesConfig
from kernrl.config.reward_weighted import RewardWeightedConfig
from kernrl.config.serve import ServeConfig
from kernrl.config.sft import SftConfig
from kernrl.config.shared.finetune_on_samples import FinetuneOnSamplesConfig
from kernrl.config.shared.policy_training import ImproveConfig
from kernrl.config.shared.training import TrainingConfig
from kernrl.config.tasks import CheckConfig, GenerateConfig, LiftConfig, ListConfig, ShowConfig, SourceConfig, StatsConfig
from kernrl.config.verifier import VerifierConfig, VerifyConfig
from kernrl.settings import Config

__all__ = [
    "BestOfNConfig",
    "CheckConfig",
    "Config",
    "DoctorConfig",
    "EvalConfig",
    "FinetuneOnSamplesConfig",
    "GenerateConfig",
    "ImproveConfig",
    "LiftConfig",
    "ListConfig",
    "OptimizeConfig",
    "QuickstartConfig",
    "ReinforceConfig",
    "ReportConfig",
    "RewardWeightedConfig",
    "SamplesConfig",
    "ServeConfig",
    "SftConfig",
    "ShowConfig",
    "SourceConfig",
    "StatsConfig",
    "TrainingConfig",
    "VerifierConfig",
    "VerifyConfig",
]
