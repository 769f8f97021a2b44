from dpfest.batches import PoissonBatches as PoissonBatches, ShuffledBatches as ShuffledBatches
from dpfest.budget import Budget as Budget, plan as plan, training_steps as training_steps
from dpfest.engine import NoisedGradient as NoisedGradient, PrivateEngine as PrivateEngine, RowGradient as RowGradient
from dpfest.errors import UserError as UserError
from dpfest.ledger import BudgetExceeded as BudgetExceeded, Ledger as Ledger
from dpfest.noise import NoiseKey as NoiseKey
from dpfest.privacy import PrivacyConfig as PrivacyConfig
from dpfest.private import PrivateTraining as PrivateTraining
from dpfest.rules import (
    DPSGD as DPSGD,
    FEST as FEST,
    AdaFEST as AdaFEST,
    AdaFESTPlus as AdaFESTPlus,
    Exponential as Exponential,
    Frozen as Frozen,
    Nonprivate as Nonprivate,
)
from dpfest.topk import SelectionConfig as SelectionConfig, select_rows as select_rows
