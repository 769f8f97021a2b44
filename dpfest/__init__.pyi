from dpfest.batches import PoissonBatches as PoissonBatches
from dpfest.batches import ShuffledBatches as ShuffledBatches
from dpfest.budget import Budget as Budget
from dpfest.budget import plan as plan
from dpfest.budget import training_steps as training_steps
from dpfest.engine import NoisedGradient as NoisedGradient
from dpfest.engine import PrivateEngine as PrivateEngine
from dpfest.engine import RowGradient as RowGradient
from dpfest.errors import UserError as UserError
from dpfest.ledger import BudgetExceeded as BudgetExceeded
from dpfest.ledger import Ledger as Ledger
from dpfest.noise import NoiseKey as NoiseKey
from dpfest.privacy import PrivacyConfig as PrivacyConfig
from dpfest.private import PrivateTraining as PrivateTraining
from dpfest.rules import (
    DPSGD as DPSGD,
)
from dpfest.rules import (
    FEST as FEST,
)
from dpfest.rules import (
    AdaFEST as AdaFEST,
)
from dpfest.rules import (
    AdaFESTPlus as AdaFESTPlus,
)
from dpfest.rules import (
    Exponential as Exponential,
)
from dpfest.rules import (
    Frozen as Frozen,
)
from dpfest.rules import (
    Nonprivate as Nonprivate,
)
from dpfest.topk import SelectionConfig as SelectionConfig
from dpfest.topk import select_rows as select_rows
