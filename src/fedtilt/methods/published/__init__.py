"""Published methods that are more than a composition of a few lines: one file each, with its components and preset."""

from fedtilt.methods.published.aaggff import AAggFF, aaggff
from fedtilt.methods.published.apfl import Apfl, apfl
from fedtilt.methods.published.fedala import FedAla, fedala
from fedtilt.methods.published.fedas import FedAs, Fisher, fedas
from fedtilt.methods.published.fedbabu import fedbabu
from fedtilt.methods.published.feddbe import FedDbe, feddbe
from fedtilt.methods.published.fedminmax import FedMinMax, fedminmax
from fedtilt.methods.published.fedrod import FedRod, fedrod
from fedtilt.methods.published.foundationfl import Foundation, foundationfl
from fedtilt.methods.published.moon import Moon, moon
